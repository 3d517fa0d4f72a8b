import { Badge } from "@mantine/core";
import type { JobSummary } from "../api/client";

const COLOURS: Record<JobSummary["state"], string> = {
  queued: "gray",
  active: "blue",
  paused: "yellow",
  cancelling: "orange",
  succeeded: "teal",
  failed: "red",
  cancelled: "dark",
};

/** A job's state: the word, and a colour beside it. */
export function StateBadge({ state }: { state: JobSummary["state"] }) {
  return (
    <Badge color={COLOURS[state]} variant="light" data-testid="job-state">
      {state}
    </Badge>
  );
}
