import { Card, Table, Title } from "@mantine/core";
import type { JobView } from "../../api/client";

type Fault = NonNullable<JobView["faults"]>[number];

/** The faults that the job asked for, and what became of them. Nothing for a job without. */
export function Faults({ faults }: { faults: Fault[] }) {
  if (faults.length === 0) {
    return null;
  }
  return (
    <Card withBorder data-testid="faults">
      <Title order={2} size="h5">
        Faults on purpose
      </Title>
      <Table verticalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Fault</Table.Th>
            <Table.Th>Step</Table.Th>
            <Table.Th>Verdict</Table.Th>
            <Table.Th>Detected</Table.Th>
            <Table.Th>Named</Table.Th>
            <Table.Th>Repaired</Table.Th>
            <Table.Th>Steps lost</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {faults.map((it) => (
            <Table.Tr key={`${it.fault.kind} ${it.fault.rank} ${it.fault.step} ${it.fault.phase}`}>
              <Table.Td>{what(it)}</Table.Td>
              <Table.Td>{`${it.fault.step}, ${it.fault.phase}`}</Table.Td>
              <Table.Td>{verdict(it)}</Table.Td>
              <Table.Td>{seconds(it.detected_after)}</Table.Td>
              <Table.Td>{seconds(it.named_after)}</Table.Td>
              <Table.Td>{seconds(it.repaired_after)}</Table.Td>
              <Table.Td>{it.steps_lost ?? "–"}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Card>
  );
}

function what({ fault }: Fault): string {
  const of = { rank: "", agent: "the agent of ", link: "the links of " }[fault.target ?? "rank"];
  return `${fault.kind} ${of}rank ${fault.rank}`;
}

function verdict(fault: Fault): string {
  if (!fault.injected_at) {
    return "has not happened";
  }
  const named = fault.named_rank ?? null;
  return `${fault.verdict ?? "–"}${named === null ? "" : `, rank ${named}`}`;
}

function seconds(after: number | null | undefined): string {
  return after === null || after === undefined ? "–" : `${after.toFixed(2)} s`;
}
