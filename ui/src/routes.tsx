import {
  createRootRoute,
  createRoute,
  createRouter,
  Outlet,
  redirect,
} from "@tanstack/react-router";
import { hasToken } from "./api/session";
import { Frame } from "./components/Frame";
import { JobListPage } from "./pages/jobs/JobListPage";
import { JobPage } from "./pages/jobs/JobPage";
import { LoginPage } from "./pages/login/LoginPage";
import { paths } from "./paths";

const root = createRootRoute({ component: Outlet });

const login = createRoute({ getParentRoute: () => root, path: paths.login, component: LoginPage });

/** Everything behind the login. */
const inside = createRoute({
  getParentRoute: () => root,
  id: "inside",
  component: Frame,
  beforeLoad: ({ location }) => {
    if (!hasToken()) {
      throw redirect({ to: paths.login, search: { next: location.href } as never });
    }
  },
});

const jobs = createRoute({
  getParentRoute: () => inside,
  path: paths.jobs,
  component: JobListPage,
});

const job = createRoute({
  getParentRoute: () => inside,
  path: paths.job,
  component: function Job() {
    const { jobId } = job.useParams();
    return <JobPage key={jobId} jobId={jobId} />;
  },
});

export const router = createRouter({
  routeTree: root.addChildren([login, inside.addChildren([jobs, job])]),
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
