import { expect, test } from "@playwright/test";
import { Service } from "./service";

let service: Service;

test.beforeAll(async () => {
  service = await Service.start();
});

test.afterAll(async () => {
  await service?.stop();
});

test("log in with the token, see the digits job finish and its curve drawn", async ({ page }) => {
  const refused: string[] = [];
  page.on("pageerror", (error) => refused.push(error.message));
  const { url, token } = service.ready;

  await page.goto(url);
  await expect(page.getByRole("button", { name: "Log in" })).toBeVisible();
  await page.getByLabel("Access token").fill("lsk_wrongtok_en");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByText(/token/i).last()).toBeVisible();
  await page.getByLabel("Access token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByText("No jobs yet")).toBeVisible();

  const submitted = JSON.parse(
    await service.lockstep("submit", "examples/digits/job.toml", "--json"),
  );
  await page.getByRole("link", { name: submitted.name }).click();
  await expect(page.getByTestId("job-state")).toHaveText("succeeded", { timeout: 90_000 });

  const curve = page.getByTestId("loss-curve");
  await expect
    .poll(async () => Number(await curve.getAttribute("data-points")))
    .toBeGreaterThan(50);
  // It is drawn anew as series are added.
  await expect.poll(() => drawnPixels(page)).toBeGreaterThan(500);
  await expect(page.getByTestId("fact-test-accuracy")).toHaveText(/^0\.9[5-9]|^1/);
  await expect(page.getByTestId("attempt")).toHaveCount(1);
  await expect(page.getByTestId("log")).not.toBeEmpty();
  expect(refused).toEqual([]);
  const picture = process.env.LOCKSTEP_PICTURE;
  if (picture) {
    await page.screenshot({ path: picture });
  }
});

/** Pixels of the training curve's own colour on the canvas. */
async function drawnPixels(page: import("@playwright/test").Page): Promise<number> {
  return page.locator("[data-testid=loss-curve] canvas").evaluate((element) => {
    const canvas = element as HTMLCanvasElement;
    const { data } = canvas.getContext("2d")?.getImageData(0, 0, canvas.width, canvas.height) ?? {
      data: [],
    };
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
      const [red, green, blue] = [data[i] ?? 0, data[i + 1] ?? 0, data[i + 2] ?? 0];
      count += red < 80 && 80 < green && green < 150 && 140 < blue ? 1 : 0;
    }
    return count;
  });
}
