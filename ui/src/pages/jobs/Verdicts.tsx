import { Alert, Stack, Text } from "@mantine/core";
import type { FailureView } from "../../api/client";
import { moment } from "../../components/format";

/** What broke, who, and whose fault it was. */
export function Verdicts({ failures }: { failures: FailureView[] }) {
  return (
    <Stack gap="xs">
      {failures.map((failure) => (
        <Alert
          key={failure.id}
          color="red"
          variant="light"
          title={failure.code}
          data-testid="verdict"
        >
          <Text size="sm">{failure.message}</Text>
          <Text size="xs" c="dimmed">
            {moment(failure.at)} · {where(failure)} · blamed on {failure.blame}
          </Text>
        </Alert>
      ))}
    </Stack>
  );
}

function where(failure: FailureView): string {
  const parts = [`generation ${failure.generation}`];
  if (failure.rank !== null && failure.rank !== undefined) {
    parts.push(`rank ${failure.rank}`);
  }
  if (failure.step !== null && failure.step !== undefined) {
    parts.push(`step ${failure.step}`);
  }
  if (failure.phase) {
    parts.push(failure.phase);
  }
  return parts.join(" · ");
}
