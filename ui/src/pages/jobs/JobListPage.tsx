import { Anchor, Button, Group, Progress, Stack, Table, Text, Title } from "@mantine/core";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type JobSummary, listJobs } from "../../api/client";
import { moment, number, rankCount } from "../../components/format";
import { StateBadge } from "../../components/StateBadge";
import { Trouble } from "../../components/Trouble";
import { paths } from "../../paths";

const REFRESH_MS = 2000;

/** All jobs of the project, newest first. */
export function JobListPage() {
  const jobs = useInfiniteQuery({
    queryKey: ["jobs"],
    queryFn: ({ pageParam }) => listJobs(pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: REFRESH_MS,
  });
  const items = jobs.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Stack>
      <Title order={1} size="h3">
        Jobs
      </Title>
      {jobs.isError && <Trouble error={jobs.error} />}
      {jobs.isSuccess && items.length === 0 && (
        <Text c="dimmed">
          No jobs yet. Submit one with <code>lockstep run job.toml</code>.
        </Text>
      )}
      {items.length !== 0 && <JobTable items={items} />}
      {jobs.hasNextPage && (
        <Group>
          <Button
            variant="default"
            loading={jobs.isFetchingNextPage}
            onClick={() => void jobs.fetchNextPage()}
          >
            Older jobs
          </Button>
        </Group>
      )}
    </Stack>
  );
}

function JobTable({ items }: { items: JobSummary[] }) {
  return (
    <Table.ScrollContainer minWidth={720}>
      <Table highlightOnHover verticalSpacing="xs">
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Job</Table.Th>
            <Table.Th>State</Table.Th>
            <Table.Th>Steps</Table.Th>
            <Table.Th>Loss</Table.Th>
            <Table.Th>Ranks</Table.Th>
            <Table.Th>Submitted</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {items.map((job) => (
            <Table.Tr key={job.id}>
              <Table.Td>
                <Anchor component={Link} to={paths.job} params={{ jobId: job.id } as never}>
                  {job.name}
                </Anchor>
              </Table.Td>
              <Table.Td>
                <StateBadge state={job.state} />
                {job.waiting && (
                  <Text size="xs" c="dimmed">
                    {job.waiting}
                  </Text>
                )}
              </Table.Td>
              <Table.Td>
                <Steps job={job} />
              </Table.Td>
              <Table.Td>{number(job.loss)}</Table.Td>
              <Table.Td>{rankCount(job)}</Table.Td>
              <Table.Td>{moment(job.created_at)}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  );
}

/** Steps done of steps in all. */
export function Steps({ job }: { job: JobSummary }) {
  const total = job.steps_total ?? 0;
  return (
    <Stack gap={2}>
      <Text size="sm">
        {job.steps_done}
        {total !== 0 && ` of ${total}`}
      </Text>
      {total !== 0 && (
        <Progress size="xs" value={(100 * job.steps_done) / total} aria-label="Progress" />
      )}
    </Stack>
  );
}
