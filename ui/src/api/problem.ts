/** RFC 9457: what the server says when it refuses. */
import type { components } from "./generated/schema";

export type ProblemBody = components["schemas"]["ProblemBody"];

export class Problem extends Error {
  constructor(readonly body: ProblemBody) {
    super(body.detail || body.title);
  }
}

/** Whether asking again may help: the server says so, or could not be reached. */
export function isRetryable(error: unknown): boolean {
  return error instanceof Problem ? error.body.retryable : error instanceof TypeError;
}

export function isUnauthenticated(error: unknown): boolean {
  return error instanceof Problem && error.body.status === 401;
}

/** One sentence for people. */
export function sentence(error: unknown): string {
  if (error instanceof Problem) {
    return error.message;
  }
  return error instanceof TypeError ? "The server does not answer." : String(error);
}
