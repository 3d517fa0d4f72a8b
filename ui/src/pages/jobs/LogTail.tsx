import { Card, Code, ScrollArea, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { type LogLine, readLog } from "../../api/client";
import { Trouble } from "../../components/Trouble";

/** Lines kept in the page; older ones are read with `lockstep logs`. */
const LINES_CAP = 500;

/** The end of the job's log, growing. Stays at the end unless scrolled away from it. */
export function LogTail({ jobId }: { jobId: string }) {
  const lines = useRef<LogLine[]>([]);
  const log = useQuery({
    queryKey: ["log", jobId],
    queryFn: async () => {
      const fresh = await readLog(jobId, lines.current.at(-1)?.seq ?? 0);
      lines.current = [...lines.current, ...fresh].slice(-LINES_CAP);
      return lines.current;
    },
  });
  const view = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const count = log.data?.at(-1)?.seq;
  // biome-ignore lint/correctness/useExhaustiveDependencies: scrolls when lines came
  useEffect(() => {
    if (isAtEnd.current && view.current !== null) {
      view.current.scrollTop = view.current.scrollHeight;
    }
  }, [count]);
  return (
    <Card withBorder>
      <Title order={2} size="h5">
        Log
      </Title>
      {log.isError && <Trouble error={log.error} />}
      <ScrollArea
        h={260}
        viewportRef={view}
        onScrollPositionChange={({ y }) => {
          const box = view.current;
          isAtEnd.current = box === null || box.scrollHeight - box.clientHeight - 20 <= y;
        }}
      >
        <Code block role="log" aria-label="Log" data-testid="log">
          {log.data?.map((line) => `${prefix(line)}${line.text}\n`)}
        </Code>
      </ScrollArea>
    </Card>
  );
}

function prefix(line: LogLine): string {
  const rank = line.rank ?? null;
  const who =
    rank === null ? line.source : `rank ${rank}${line.source === "rank" ? "" : ` ${line.source}`}`;
  return `${new Date(line.at).toLocaleTimeString()} ${who} ${line.level}: `;
}
