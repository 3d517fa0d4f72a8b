/** The REST calls this page makes, typed by the server's own document. */
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/schema";
import { Problem, type ProblemBody } from "./problem";
import { token } from "./session";

export type JobSummary = components["schemas"]["JobSummary"];
export type JobView = components["schemas"]["JobView"];
export type AttemptView = components["schemas"]["AttemptView"];
export type FailureView = components["schemas"]["FailureView"];
export type CheckpointView = components["schemas"]["CheckpointView"];
export type MetricSeries = components["schemas"]["MetricSeries"];
export type LogLine = components["schemas"]["LogLine"];
export type ArrivalMap = components["schemas"]["ArrivalMap"];
export type RankArrival = components["schemas"]["RankArrival"];
export type Me = components["schemas"]["Me"];

const client = createClient<paths>({ baseUrl: "" });

client.use({
  onRequest({ request }) {
    const secret = token();
    if (secret !== null && !request.headers.has("Authorization")) {
      request.headers.set("Authorization", `Bearer ${secret}`);
    }
    return request;
  },
});

/** The answer's data, or its problem thrown. */
async function data<T>(
  answer: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  const { data, error, response } = await answer;
  if (data === undefined) {
    throw new Problem(asProblem(error, response));
  }
  return data;
}

function asProblem(error: unknown, response: Response): ProblemBody {
  if (typeof error === "object" && error !== null && "code" in error) {
    return error as ProblemBody;
  }
  const title = response.statusText || `Status ${response.status}`;
  const retryable = 500 <= response.status;
  return {
    type: "about:blank",
    title,
    status: response.status,
    detail: title,
    code: "internal",
    retryable,
  };
}

/** Who this token is; asked with the token itself, before it is kept. */
export const whoami = (secret: string): Promise<Me> =>
  data(client.GET("/v1/me", { headers: { Authorization: `Bearer ${secret}` } }));

export const me = (): Promise<Me> => data(client.GET("/v1/me"));

export const listJobs = (cursor?: string) =>
  data(client.GET("/v1/jobs", { params: { query: cursor === undefined ? {} : { cursor } } }));

export const getJob = (id: string): Promise<JobView> =>
  data(client.GET("/v1/jobs/{id}", { params: { path: { id } } }));

export const cancelJob = (id: string): Promise<JobView> =>
  data(client.POST("/v1/jobs/{id}/cancel", { params: { path: { id } } }));

export const getMetrics = async (id: string): Promise<MetricSeries[]> =>
  (await data(client.GET("/v1/jobs/{id}/metrics", { params: { path: { id } } }))).series;

/** Who has entered the collective under way, and what the others do. */
export const getRanks = (id: string): Promise<ArrivalMap> =>
  data(client.GET("/v1/jobs/{id}/ranks", { params: { path: { id } } }));

export const readLog = async (id: string, after: number): Promise<LogLine[]> => {
  // The first read takes the end of the log, later ones what has come since.
  const query = after === 0 ? { tail: true, limit: 500 } : { after, limit: 1000 };
  return (await data(client.GET("/v1/jobs/{id}/log", { params: { path: { id }, query } }))).lines;
};
