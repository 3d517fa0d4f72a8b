import { Badge, Card, Table, Text, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { type ArrivalMap, getRanks, type RankArrival } from "../../api/client";
import { Trouble } from "../../components/Trouble";

/** Heartbeats come more often while somebody waits; reading more often than this shows nothing new. */
const LOOK_AGAIN_MS = 1000;

const COLORS: Record<RankArrival["standing"], string> = {
  working: "gray",
  entered: "blue",
  missing: "red",
  unknown: "yellow",
  ended: "dark",
};

/** Who has entered the collective under way, who has not, and what those do instead. */
export function Arrivals({ jobId }: { jobId: string }) {
  const map = useQuery({
    queryKey: ["ranks", jobId],
    queryFn: () => getRanks(jobId),
    refetchInterval: LOOK_AGAIN_MS,
  });
  if (map.data === undefined) {
    return map.isError ? <Trouble error={map.error} /> : null;
  }
  return <ArrivalTable map={map.data} />;
}

export function ArrivalTable({ map }: { map: ArrivalMap }) {
  if (map.ranks.length === 0) {
    return null;
  }
  return (
    <Card withBorder data-testid="arrivals">
      <Title order={2} size="h5">
        Collective under way
      </Title>
      <Text size="sm" role="status" data-testid="arrivals-summary">
        {map.summary}
      </Text>
      <Table verticalSpacing={4}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Rank</Table.Th>
            <Table.Th>Node</Table.Th>
            <Table.Th>Phase</Table.Th>
            <Table.Th>Step</Table.Th>
            <Table.Th>Since</Table.Th>
            <Table.Th>Collective</Table.Th>
            <Table.Th>State</Table.Th>
            <Table.Th>Heard</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {map.ranks.map((rank) => (
            <Table.Tr key={rank.rank}>
              <Table.Td>{rank.rank}</Table.Td>
              <Table.Td>{rank.node_name}</Table.Td>
              <Table.Td>{rank.phase ?? "–"}</Table.Td>
              <Table.Td>{rank.step ?? "–"}</Table.Td>
              <Table.Td>{seconds(rank.phase_ms)}</Table.Td>
              <Table.Td>{collective(rank, map.collective?.lane ?? 0)}</Table.Td>
              <Table.Td>
                <Badge size="sm" variant="light" color={COLORS[rank.standing]}>
                  {state(rank)}
                </Badge>
              </Table.Td>
              <Table.Td>{heard(rank)}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Card>
  );
}

function collective(rank: RankArrival, lane: number): string {
  if (typeof rank.entered !== "number") {
    return "–";
  }
  const inside = typeof rank.waited_ms === "number" ? `, in it for ${seconds(rank.waited_ms)}` : "";
  const ofLane = lane === 0 ? "" : ` of lane ${lane}`;
  return `${rank.entered}${ofLane}: ${rank.what ?? "?"}${inside}`;
}

function state(rank: RankArrival): string {
  const parts: string[] = [rank.standing];
  if (rank.is_stopped) {
    parts.push("stopped");
  }
  if (typeof rank.pause_left_ms === "number") {
    parts.push(`busy for ${seconds(rank.pause_left_ms)} at most`);
  }
  return parts.join(", ");
}

function heard(rank: RankArrival): string {
  return typeof rank.seen_ms === "number" ? `${seconds(rank.seen_ms)} ago` : "never";
}

/** Tenths are what changes while one looks. */
function seconds(ms: number | null | undefined): string {
  return typeof ms === "number" ? `${(Math.floor(ms / 100) / 10).toFixed(1)} s` : "–";
}
