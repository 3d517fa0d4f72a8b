/** Every address of the page, in one place. */
export const paths = {
  login: "/login",
  jobs: "/",
  job: "/jobs/$jobId",
} as const;
