/**
 * Live events of a job. The browser's own EventSource cannot send a token, so the stream is read with fetch;
 * a broken stream is taken up again after the last event seen.
 */
import type { components } from "./generated/schema";
import { token } from "./session";

export interface SseMessage {
  id: string | undefined;
  event: string;
  data: string;
}

/** Cuts a stream of text into server-sent messages. Keeps what is incomplete for the next call. */
export class SseParser {
  private rest = "";
  private id: string | undefined;

  push(text: string): SseMessage[] {
    this.rest = (this.rest + text).replaceAll("\r\n", "\n");
    const messages: SseMessage[] = [];
    for (let end = this.rest.indexOf("\n\n"); end !== -1; end = this.rest.indexOf("\n\n")) {
      const block = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + 2);
      const message = this.parse(block);
      if (message !== undefined) {
        messages.push(message);
      }
    }
    return messages;
  }

  private parse(block: string): SseMessage | undefined {
    const data: string[] = [];
    let event = "message";
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon === 0) {
        continue;
      }
      const field = colon === -1 ? line : line.slice(0, colon);
      const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") {
        data.push(value);
      } else if (field === "event") {
        event = value;
      } else if (field === "id") {
        this.id = value;
      }
    }
    return data.length === 0 ? undefined : { id: this.id, event, data: data.join("\n") };
  }
}

export type EventKind = components["schemas"]["JobEventKind"];

export interface Subscription {
  onEvent: (kind: EventKind) => void;
  onConnected: (connected: boolean) => void;
  signal: AbortSignal;
}

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/** Follows a job until the signal is aborted. Never throws: a failure is a reason to try again. */
export async function followJob(jobId: string, subscription: Subscription): Promise<void> {
  let lastId: string | undefined;
  let pause = FIRST_PAUSE_MS;
  while (!subscription.signal.aborted) {
    try {
      await readStream(jobId, lastId, subscription, (id) => {
        lastId = id ?? lastId;
        pause = FIRST_PAUSE_MS;
      });
    } catch {
      // Shown as "not live"; the loop is the remedy.
    }
    subscription.onConnected(false);
    await sleep(pause, subscription.signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

async function readStream(
  jobId: string,
  lastId: string | undefined,
  { onEvent, onConnected, signal }: Subscription,
  seen: (id: string | undefined) => void,
): Promise<void> {
  const headers: Record<string, string> = { Authorization: `Bearer ${token() ?? ""}` };
  if (lastId !== undefined) {
    headers["Last-Event-ID"] = lastId;
  }
  const response = await fetch(`/v1/jobs/${jobId}/events`, { headers, signal });
  if (!response.ok || response.body === null) {
    throw new Error(`status ${response.status}`);
  }
  onConnected(true);
  const parser = new SseParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    for (const message of parser.push(part.value)) {
      seen(message.id);
      onEvent((JSON.parse(message.data) as { kind: EventKind }).kind);
    }
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
