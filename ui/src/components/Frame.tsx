import {
  ActionIcon,
  Anchor,
  AppShell,
  Button,
  Group,
  Text,
  useMantineColorScheme,
} from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import { me } from "../api/client";
import { isUnauthenticated } from "../api/problem";
import { logOut } from "../api/session";
import { paths } from "../paths";

/** What surrounds every page behind the login. */
export function Frame() {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const { data, error } = useQuery({
    queryKey: ["me"],
    queryFn: me,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const { toggleColorScheme } = useMantineColorScheme();

  const leave = () => {
    logOut();
    queries.clear();
    void navigate({ to: paths.login });
  };
  const expired = isUnauthenticated(error);
  // biome-ignore lint/correctness/useExhaustiveDependencies: leaving happens once, when the token is refused
  useEffect(() => {
    if (expired) {
      leave();
    }
  }, [expired]);

  return (
    <AppShell header={{ height: 52 }} padding="md">
      <AppShell.Header>
        <Group h="100%" px="md" justify="space-between" wrap="nowrap">
          <Anchor component={Link} to={paths.jobs} fw={700} underline="never" c="inherit">
            Lockstep
          </Anchor>
          <Group gap="sm" wrap="nowrap">
            {data && (
              <Text size="sm" c="dimmed">
                {data.principal_name} · {data.project_name} · {data.role}
              </Text>
            )}
            <ActionIcon
              variant="subtle"
              aria-label="Switch between light and dark"
              onClick={toggleColorScheme}
            >
              ◐
            </ActionIcon>
            <Button variant="subtle" size="compact-sm" onClick={leave}>
              Log out
            </Button>
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Main>
        <Outlet />
      </AppShell.Main>
    </AppShell>
  );
}
