import "@mantine/core/styles.css";
import "uplot/dist/uPlot.min.css";
import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { isRetryable } from "./api/problem";
import { router } from "./routes";

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      retry: (failures, error) => failures < 5 && isRetryable(error),
      refetchOnWindowFocus: false,
    },
  },
});

const root = document.getElementById("root");
if (root === null) {
  throw new Error("index.html has no #root");
}
createRoot(root).render(
  <StrictMode>
    <MantineProvider defaultColorScheme="auto">
      <QueryClientProvider client={queries}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
);
