import { expect, test } from "vitest";
import { duration, number, rankCount } from "./format";

test("numbers keep four digits and use exponents only at the ends", () => {
  expect([0, 0.12345, 12.3456, 1e-9, 2e9, null].map(number)).toEqual([
    "0.000",
    "0.1235",
    "12.35",
    "1.000e-9",
    "2.000e+9",
    "–",
  ]);
});

test("a time is told in its two largest units", () => {
  expect([-5, 12, 1500, 61_000, 3_600_000, 90_061_000].map(duration)).toEqual([
    "0 ms",
    "12 ms",
    "1 s",
    "1 min 1 s",
    "1 h",
    "1 d 1 h",
  ]);
});

test("a world size is a number or a range", () => {
  const ranks = { min: 1, max: 4 };
  const jobs = [{ ranks: 2, world_size: 2 }, { ranks }, { ranks, world_size: 3 }];
  expect(jobs.map(rankCount)).toEqual(["2", "1 to 4", "3 of 1 to 4"]);
});
