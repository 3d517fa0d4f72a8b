import { Alert } from "@mantine/core";
import { sentence } from "../api/problem";

/** What went wrong, where its result would have been. */
export function Trouble({ error }: { error: unknown }) {
  return (
    <Alert color="red" title="That did not work" role="alert">
      {sentence(error)}
    </Alert>
  );
}
