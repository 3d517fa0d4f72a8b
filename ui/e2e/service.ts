/** The real service for a test: `lockstep up` in a folder of its own, stopped and removed afterwards. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";

const READY_MS = 60_000;
const STOP_MS = 40_000;

export interface Ready {
  url: string;
  token: string;
}

export class Service {
  private constructor(
    private readonly up: ChildProcess,
    private readonly folder: string,
    readonly ready: Ready,
  ) {}

  static async start(): Promise<Service> {
    const folder = mkdtempSync(join(tmpdir(), "lockstep-ui-"));
    const readyFile = join(folder, "ready.json");
    const arguments_ = ["up", "--data-dir", join(folder, "data"), "--listen", "127.0.0.1:0"];
    const up = spawn(program(), [...arguments_, "--ready-file", readyFile, "--slots", "2"], {
      env: environment(folder),
      stdio: ["ignore", "inherit", "inherit"],
    });
    const deadline = Date.now() + READY_MS;
    while (!existsSync(readyFile)) {
      if (up.exitCode !== null || deadline < Date.now()) {
        up.kill("SIGKILL");
        throw new Error(`lockstep up is not ready (exit code ${up.exitCode})`);
      }
      await pause(50);
    }
    return new Service(up, folder, JSON.parse(readFileSync(readyFile, "utf8")) as Ready);
  }

  /** Runs one command line of `lockstep` and returns its standard output. */
  async lockstep(...arguments_: string[]): Promise<string> {
    const { stdout } = await promisify(execFile)(program(), arguments_, {
      env: environment(this.folder),
      cwd: resolve(import.meta.dirname, "../.."),
    });
    return stdout;
  }

  async stop(): Promise<void> {
    if (this.up.exitCode === null) {
      const ended = new Promise((done) => this.up.once("exit", done));
      this.up.kill("SIGINT");
      await Promise.race([ended, pause(STOP_MS)]);
      this.up.kill("SIGKILL");
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

function program(): string {
  return join(
    process.env.LOCKSTEP_BIN_DIR ?? resolve(import.meta.dirname, "../../target/debug"),
    "lockstep",
  );
}

function environment(folder: string): NodeJS.ProcessEnv {
  return { ...process.env, LOCKSTEP_CONFIG: join(folder, "config.toml") };
}
