import { Card, Group, Stack, Table, Text, Title } from "@mantine/core";
import type { AttemptView } from "../../api/client";
import { duration } from "../../components/format";

/** World sizes of an attempt whose gang grows and shrinks: the last so many. */
const SIZES_SHOWN = 8;

/** Every try at the job, newest first, with its ranks. */
export function Attempts({ attempts }: { attempts: AttemptView[] }) {
  return (
    <Stack>
      {attempts.map((attempt) => (
        <Card key={attempt.id} withBorder data-testid="attempt">
          <Group justify="space-between">
            <Title order={2} size="h5">
              Attempt {attempt.number}: {ended(attempt)}
            </Title>
            <Text size="sm" c="dimmed">
              {summary(attempt)}
            </Text>
          </Group>
          <Ranks attempt={attempt} />
        </Card>
      ))}
    </Stack>
  );
}

/** A stop that was asked for says by what. */
function ended(attempt: AttemptView): string {
  if (attempt.outcome === "cancelled" && attempt.stopped_because) {
    return `stopped (${attempt.stopped_because})`;
  }
  return attempt.outcome ?? attempt.state;
}

function summary(attempt: AttemptView): string {
  const parts = [`generation ${attempt.generation}`, `from step ${attempt.first_step}`];
  const sizes = (attempt.groups ?? []).map((group) => group.world_size);
  const changes = sizes.filter((size, index) => index === 0 || size !== sizes[index - 1]);
  const repairs = sizes.length - changes.length;
  if (0 < repairs) {
    parts.push(`repaired in place ${repairs === 1 ? "once" : `${repairs} times`}`);
  }
  if (1 < changes.length) {
    const shown = changes.slice(-SIZES_SHOWN).join(", ");
    parts.push(`ranks ${SIZES_SHOWN < changes.length ? "…, " : ""}${shown}`);
  }
  if (attempt.first_step_at) {
    parts.push(
      `first step after ${duration(Date.parse(attempt.first_step_at) - Date.parse(attempt.created_at))}`,
    );
  }
  return parts.join(" · ");
}

function Ranks({ attempt }: { attempt: AttemptView }) {
  return (
    <Table verticalSpacing={4}>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Rank</Table.Th>
          <Table.Th>Node</Table.Th>
          <Table.Th>Process</Table.Th>
          <Table.Th>Phase</Table.Th>
          <Table.Th>Step</Table.Th>
          <Table.Th>End</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {attempt.ranks.map((rank) => (
          <Table.Tr key={rank.rank}>
            <Table.Td>{rank.rank}</Table.Td>
            <Table.Td>{rank.node_name}</Table.Td>
            <Table.Td>{rank.pid ?? "–"}</Table.Td>
            <Table.Td>{rank.phase ?? "–"}</Table.Td>
            <Table.Td>{rank.step ?? "–"}</Table.Td>
            <Table.Td>{ending(rank)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function ending(rank: AttemptView["ranks"][number]): string {
  if (rank.signal !== null && rank.signal !== undefined) {
    return `signal ${rank.signal}`;
  }
  return rank.exit_code === null || rank.exit_code === undefined ? "–" : `exit ${rank.exit_code}`;
}
