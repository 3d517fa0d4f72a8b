import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type EventKind, followJob } from "../../api/events";

/** What each kind of event makes stale. */
const STALE: Record<EventKind, string[]> = {
  state: ["job", "metrics"],
  metrics: ["job", "metrics"],
  log: ["log"],
  failure: ["job"],
  checkpoint: ["job"],
};

/** Several events in a row cause one reading. */
const COALESCE_MS = 150;

/** Keeps the job's queries fresh while it lives. Answers whether the stream stands. */
export function useLiveJob(jobId: string, wanted: boolean): boolean {
  const queries = useQueryClient();
  const [isLive, setLive] = useState(false);
  useEffect(() => {
    const ending = new AbortController();
    const stale = new Set<string>();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = () => {
      timer = undefined;
      for (const name of stale) {
        void queries.invalidateQueries({ queryKey: [name, jobId] }, { cancelRefetch: false });
      }
      stale.clear();
    };
    const later = (names: string[]) => {
      for (const name of names) {
        stale.add(name);
      }
      timer ??= setTimeout(refresh, COALESCE_MS);
    };
    if (wanted) {
      void followJob(jobId, {
        signal: ending.signal,
        onEvent: (kind) => later(STALE[kind]),
        onConnected: (connected) => {
          if (!ending.signal.aborted) {
            setLive(connected);
          }
          // Whatever happened while nobody listened.
          later(["job", "metrics", "log"]);
        },
      });
    }
    return () => {
      ending.abort();
      clearTimeout(timer);
      // The last events of a job that ended may not have been read yet.
      for (const name of ["job", "metrics", "log"]) {
        void queries.invalidateQueries({ queryKey: [name, jobId] });
      }
    };
  }, [jobId, wanted, queries]);
  return isLive;
}
