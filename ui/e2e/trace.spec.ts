/** What `lockstep trace` writes, opened with speedscope's own importer in a browser. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { expect, type Page, test } from "@playwright/test";
import { Service } from "./service";

const SPEEDSCOPE = resolve(
  import.meta.dirname,
  "../node_modules/speedscope/dist/release/index.html",
);
const JOB = ["examples/digits/job.toml", "--ranks", "2", "--set", "train.max_steps=15"];

/** The part of speedscope's file format that is looked at. */
interface Exported {
  shared: { frames: { name: string }[] };
  profiles: { name: string; events: { type: "O" | "C"; frame: number; at: number }[] }[];
}

let service: Service;
let folder: string;

test.beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "lockstep-trace-"));
  service = await Service.start();
});

test.afterAll(async () => {
  await service?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("speedscope opens the trace of a job and finds each rank's steps in order", async ({
  page,
}) => {
  await service.lockstep("run", ...JOB);
  const file = join(folder, "trace.json");
  await service.lockstep("trace", "digits-mlp", "-o", file);

  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => {
    if (/Tried to|Ignoring|[Ee]rror/.test(message.text())) {
      complaints.push(message.text());
    }
  });
  await page.goto(`file://${SPEEDSCOPE}`);
  await page.locator("input[type=file]").first().setInputFiles(file);
  await expect(page.getByText("Export")).toBeVisible();
  const { shared, profiles } = await exported(page);
  expect(complaints).toEqual([]);

  for (const rank of [0, 1]) {
    const compute = profiles.find(
      ({ name }) => name.includes(`rank ${rank}`) && /compute/.test(name),
    );
    const begun = compute?.events.filter(({ type }) => type === "O") ?? [];
    const names = begun.map(({ frame }) => shared.frames[frame]?.name.replace(/ \{.*/, ""));
    const steps = names.filter((name) => name?.startsWith("step "));
    expect(steps).toEqual(Array.from({ length: 15 }, (_, step) => `step ${step}`));
    const first = names.slice(0, names.indexOf("step 1"));
    expect(first.indexOf("forward")).toBeLessThan(first.indexOf("backward"));
    expect(first.indexOf("backward")).toBeLessThan(first.indexOf("wait"));
    expect(first.indexOf("wait")).toBeLessThan(first.indexOf("optimizer"));
    expect(names).toContain("evaluation");
    expect(
      profiles.some(({ name }) => name.includes(`rank ${rank}`) && /communication/.test(name)),
    ).toBe(true);
  }
});

/** All that speedscope has read, by its own export. */
async function exported(page: Page): Promise<Exported> {
  const download = page.waitForEvent("download");
  await page.getByText("Export").click();
  return JSON.parse(readFileSync(await (await download).path(), "utf8")) as Exported;
}
