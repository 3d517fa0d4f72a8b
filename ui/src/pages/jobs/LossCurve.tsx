import { Text, useComputedColorScheme } from "@mantine/core";
import { useEffect, useMemo, useRef } from "react";
import uPlot from "uplot";
import type { MetricSeries } from "../../api/client";
import { number } from "../../components/format";

/** Colours that people with any colour vision tell apart (Okabe and Ito). */
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const HEIGHT = 300;

/** Series with one common axis of steps, as the chart wants them: gaps are null. */
export function align(series: MetricSeries[]): uPlot.AlignedData {
  const steps = [...new Set(series.flatMap((one) => one.points.map((p) => p.step)))].sort(
    (a, b) => a - b,
  );
  const columns = series.map((one) => {
    const values = new Map(one.points.map((p) => [p.step, p.value ?? null]));
    return steps.map((step) => values.get(step) ?? null);
  });
  return [steps, ...columns];
}

/** Training and test loss over steps. Keeps its zoom while points are added. */
export function LossCurve({ series }: { series: MetricSeries[] }) {
  const losses = useMemo(() => series.filter((one) => one.name.endsWith("/loss")), [series]);
  const names = losses.map((one) => one.name).join(" ");
  const scheme = useComputedColorScheme();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const data = useMemo(() => align(losses), [losses]);
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const parent = box.current;
    if (parent === null || names === "") {
      return;
    }
    const chart = new uPlot(
      options(names.split(" "), parent.clientWidth, scheme),
      latest.current,
      parent,
    );
    plot.current = chart;
    const resize = new ResizeObserver(() =>
      chart.setSize({ width: parent.clientWidth, height: HEIGHT }),
    );
    resize.observe(parent);
    return () => {
      resize.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [names, scheme]);

  useEffect(() => {
    const chart = plot.current;
    if (chart !== null) {
      const x = chart.scales.x;
      const before = chart.data[0];
      const isZoomed = x?.min !== before[0] || x?.max !== before.at(-1);
      chart.setData(data, before.length === 0 || !isZoomed);
    }
  }, [data]);

  return (
    <>
      {names === "" && <Text c="dimmed">No steps yet.</Text>}
      <div ref={box} data-testid="loss-curve" data-points={data[0].length} aria-hidden="true" />
      <table style={HIDDEN}>
        <caption>Last value of each series</caption>
        <tbody>
          {losses.map((one) => (
            <tr key={one.name}>
              <th scope="row">{one.name}</th>
              <td>{number(one.points.at(-1)?.value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** The canvas says nothing to a screen reader; this table does. */
const HIDDEN = {
  position: "absolute",
  width: 1,
  height: 1,
  overflow: "hidden",
  clipPath: "inset(50%)",
} as const;

function options(names: string[], width: number, scheme: "light" | "dark"): uPlot.Options {
  const ink = scheme === "dark" ? "#c9c9c9" : "#333333";
  const axis = {
    stroke: ink,
    grid: { stroke: scheme === "dark" ? "#3a3a3a" : "#e6e6e6", width: 1 },
  };
  return {
    width,
    height: HEIGHT,
    scales: { x: { time: false } },
    axes: [
      { ...axis, label: "step" },
      { ...axis, size: 64 },
    ],
    series: [
      { label: "step" },
      ...names.map((label, index) => {
        const stroke = COLOURS[index % COLOURS.length] as string;
        return {
          label,
          stroke,
          width: 2,
          spanGaps: true,
          points: { show: label.startsWith("eval/"), size: 6 },
        };
      }),
    ],
  };
}
