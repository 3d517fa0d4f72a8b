import { expect, test } from "vitest";
import { SseParser } from "./events";

test("messages come out whole however the stream is cut", () => {
  const text =
    ': keep-alive\n\nid: 7\nevent: job\ndata: {"kind":"state"}\n\nid: 8\r\ndata: a\r\ndata: b\r\n\r\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const parser = new SseParser();
    const messages = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
    expect(messages).toEqual([
      { id: "7", event: "job", data: '{"kind":"state"}' },
      { id: "8", event: "message", data: "a\nb" },
    ]);
  }
});
