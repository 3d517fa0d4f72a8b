import { expect, test } from "vitest";
import { align } from "./LossCurve";

test("series of different steps share one axis, with gaps where one has no value", () => {
  const series = [
    {
      name: "train/loss",
      points: [
        { step: 0, value: 2 },
        { step: 1, value: null },
        { step: 2, value: 1 },
      ],
    },
    { name: "eval/loss", points: [{ step: 3, value: 1.5 }] },
  ];
  expect(align(series)).toEqual([
    [0, 1, 2, 3],
    [2, null, 1, null],
    [null, null, null, 1.5],
  ]);
});
