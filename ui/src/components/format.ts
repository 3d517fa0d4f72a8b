/** Numbers and times as people read them. */

import type { JobSummary } from "../api/client";

/** Four significant digits; exponents only where they are needed. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) {
    return "–";
  }
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || 1e6 <= size) ? value.toExponential(3) : value.toPrecision(4);
}

const UNITS: [string, number][] = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1000],
];

/** A length of time in its two largest units. */
export function duration(ms: number): string {
  if (ms < 1000) {
    return `${Math.max(0, Math.round(ms))} ms`;
  }
  const first = UNITS.findIndex(([, size]) => size <= ms);
  const [unit, size] = UNITS[first] as [string, number];
  const next = UNITS[first + 1];
  const head = `${Math.floor(ms / size)} ${unit}`;
  const tail = next && Math.floor((ms % size) / next[1]);
  return next && tail ? `${head} ${tail} ${next[0]}` : head;
}

/** A world size, or between which sizes it may change, with the present one while there is one. */
export function rankCount({ ranks, world_size }: Pick<JobSummary, "ranks" | "world_size">): string {
  if (typeof ranks === "number") return String(ranks);
  const range = `${ranks.min} to ${ranks.max}`;
  return world_size == null ? range : `${world_size} of ${range}`;
}

export function moment(iso: string): string {
  return new Date(iso).toLocaleString();
}

export function bytes(size: number): string {
  return size < 1024 * 1024
    ? `${(size / 1024).toFixed(1)} KiB`
    : `${(size / 1024 / 1024).toFixed(1)} MiB`;
}
