import { Button, Card, Group, Stack, Text, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { cancelJob, getJob, getMetrics, type JobView } from "../../api/client";
import { duration, moment, number, rankCount } from "../../components/format";
import { StateBadge } from "../../components/StateBadge";
import { Trouble } from "../../components/Trouble";
import { Arrivals } from "./Arrivals";
import { Attempts } from "./Attempts";
import { Checkpoints } from "./Checkpoints";
import { Faults } from "./Faults";
import { Steps } from "./JobListPage";
import { LogTail } from "./LogTail";
import { LossCurve } from "./LossCurve";
import { useLiveJob } from "./useLiveJob";
import { Verdicts } from "./Verdicts";

const FINAL: JobView["state"][] = ["succeeded", "failed", "cancelled"];

/** One job: state, live loss curve, ranks, log tail, verdicts. */
export function JobPage({ jobId }: { jobId: string }) {
  const job = useQuery({ queryKey: ["job", jobId], queryFn: () => getJob(jobId) });
  const metrics = useQuery({ queryKey: ["metrics", jobId], queryFn: () => getMetrics(jobId) });
  const isOver = job.data !== undefined && FINAL.includes(job.data.state);
  const isLive = useLiveJob(jobId, !isOver);
  if (job.data === undefined) {
    return job.isError ? <Trouble error={job.error} /> : <Text c="dimmed">Loading…</Text>;
  }
  return (
    <Stack>
      <Heading job={job.data} isLive={isLive || isOver} />
      {job.isError && <Trouble error={job.error} />}
      <Verdicts failures={job.data.failures} />
      <Card withBorder>
        <Title order={2} size="h5">
          Loss
        </Title>
        {metrics.isError ? (
          <Trouble error={metrics.error} />
        ) : (
          <LossCurve series={metrics.data ?? []} />
        )}
      </Card>
      <Faults faults={job.data.faults ?? []} />
      {!isOver && <Arrivals jobId={jobId} />}
      <Attempts attempts={job.data.attempts} />
      <Checkpoints checkpoints={job.data.checkpoints} />
      <LogTail jobId={jobId} />
    </Stack>
  );
}

function Heading({ job, isLive }: { job: JobView; isLive: boolean }) {
  const queries = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => cancelJob(job.id),
    onSettled: () => queries.invalidateQueries({ queryKey: ["job", job.id] }),
  });
  const isOver = FINAL.includes(job.state);
  return (
    <Stack gap="xs">
      <Group justify="space-between">
        <Group>
          <Title order={1} size="h3">
            {job.name}
          </Title>
          <StateBadge state={job.state} />
          {!isLive && (
            <Text size="sm" c="orange" role="status">
              not live, reconnecting
            </Text>
          )}
        </Group>
        {!isOver && (
          <Button
            color="red"
            variant="light"
            loading={cancel.isPending}
            onClick={() => cancel.mutate()}
          >
            Cancel job
          </Button>
        )}
      </Group>
      {job.waiting && <Text c="dimmed">{job.waiting}</Text>}
      {job.ended_because && <Text c="dimmed">{job.ended_because}</Text>}
      {cancel.isError && <Trouble error={cancel.error} />}
      <Group gap="xl">
        <Steps job={job} />
        <Fact name="training loss" value={number(job.loss)} />
        {Object.entries(job.metrics)
          .filter(([name]) => name.startsWith("eval/"))
          .map(([name, value]) => (
            <Fact key={name} name={name.replace("eval/", "test ")} value={number(value)} />
          ))}
        <Fact name="priority" value={String(job.priority ?? 50)} />
        <Fact name="ranks" value={rankCount(job)} />
        <Fact name="timeouts" value={timeouts(job.timeouts)} />
        <Fact name="submitted" value={moment(job.created_at)} />
        {job.ended_at && (
          <Fact
            name="took"
            value={duration(Date.parse(job.ended_at) - Date.parse(job.created_at))}
          />
        )}
      </Group>
    </Stack>
  );
}

/** The limits that people look for; all of them: `lockstep show`. */
function timeouts(limits: JobView["timeouts"]): string {
  return `warn ${duration(limits.soft_ms)} · fail ${duration(limits.collective_ms)} · meet ${duration(limits.formation_ms)}`;
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text size="sm" data-testid={`fact-${name.replaceAll(" ", "-")}`}>
        {value}
      </Text>
    </div>
  );
}
