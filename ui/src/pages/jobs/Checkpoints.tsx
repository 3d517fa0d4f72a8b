import { Badge, Card, Table, Title } from "@mantine/core";
import type { CheckpointView } from "../../api/client";
import { bytes, moment } from "../../components/format";

/** What can be resumed from or downloaded. */
export function Checkpoints({ checkpoints }: { checkpoints: CheckpointView[] }) {
  if (checkpoints.length === 0) {
    return null;
  }
  return (
    <Card withBorder>
      <Title order={2} size="h5">
        Checkpoints
      </Title>
      <Table verticalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Steps done</Table.Th>
            <Table.Th>Id</Table.Th>
            <Table.Th>Size</Table.Th>
            <Table.Th>Published</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {checkpoints.map((checkpoint) => (
            <Table.Tr key={checkpoint.id}>
              <Table.Td>
                {checkpoint.step} {checkpoint.is_pinned && <Badge size="xs">Pinned</Badge>}
              </Table.Td>
              <Table.Td>
                <code>{checkpoint.id}</code>
              </Table.Td>
              <Table.Td>{bytes(checkpoint.size_bytes)}</Table.Td>
              <Table.Td>{moment(checkpoint.created_at)}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Card>
  );
}
