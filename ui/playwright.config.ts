import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "e2e",
  timeout: 240_000,
  expect: { timeout: 30_000 },
  workers: 1,
  forbidOnly: true,
  reporter: [["list"]],
  outputDir: "node_modules/.cache/playwright",
  use: {
    browserName: "chromium",
    viewport: { width: 1280, height: 1000 },
    launchOptions: {
      // Debian's own; nothing is downloaded.
      executablePath: "/usr/bin/chromium",
      args: [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    },
  },
});
