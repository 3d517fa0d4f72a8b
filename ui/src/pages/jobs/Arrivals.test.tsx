import { MantineProvider } from "@mantine/core";
import { render, screen } from "@testing-library/react";
import { expect, test } from "vitest";
import type { ArrivalMap, RankArrival } from "../../api/client";
import { ArrivalTable } from "./Arrivals";

const waiting: RankArrival = {
  rank: 0,
  node_id: "018f0000-0000-7000-8000-000000000000",
  node_name: "alpha",
  pid: 70,
  phase: "reduce",
  phase_ms: 2100,
  step: 12,
  standing: "entered",
  entered: 41,
  left: 40,
  what: "bucket 3 of 9",
  waited_ms: 2199,
  pause_left_ms: null,
  is_stopped: false,
  seen_ms: 300,
};

test("the table tells who waits from who is missing, and the sentence stands above it", () => {
  const missing: RankArrival = {
    ...waiting,
    rank: 1,
    phase: "data",
    standing: "missing",
    entered: 40,
    waited_ms: null,
    pause_left_ms: 4000,
    is_stopped: true,
  };
  const map: ArrivalMap = {
    attempt_id: null,
    state: "running",
    generation: 1,
    collective: { sequence: 41, what: "bucket 3 of 9", waited_ms: 2199 },
    ranks: [waiting, missing],
    summary: "rank 1 is late",
    at: "2026-01-01T00:00:00Z",
  };
  render(
    <MantineProvider>
      <ArrivalTable map={map} />
    </MantineProvider>,
  );
  expect(screen.getByTestId("arrivals-summary").textContent).toBe("rank 1 is late");
  const rows = screen.getAllByRole("row").map((row) => row.textContent);
  expect(rows[1]).toContain("41: bucket 3 of 9, in it for 2.1 sentered0.3 s ago");
  expect(rows[2]).toContain("40: bucket 3 of 9missing, stopped, busy for 4.0 s at most");
});

test("a job without an attempt has no table", () => {
  const map: ArrivalMap = {
    attempt_id: null,
    state: null,
    generation: null,
    collective: null,
    ranks: [],
    summary: "the job has no attempt yet",
    at: "2026-01-01T00:00:00Z",
  };
  render(
    <MantineProvider>
      <ArrivalTable map={map} />
    </MantineProvider>,
  );
  expect(screen.queryByTestId("arrivals")).toBeNull();
});
