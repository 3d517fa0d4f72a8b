import { Button, Card, Center, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { whoami } from "../../api/client";
import { sentence } from "../../api/problem";
import { logIn } from "../../api/session";
import { paths } from "../../paths";

/** Asks for a token, tries it, keeps it for this tab. */
export function LoginPage() {
  const [secret, setSecret] = useState("");
  const navigate = useNavigate();
  const attempt = useMutation({
    mutationFn: (text: string) => whoami(text),
    retry: false,
    onSuccess: (_, text) => {
      logIn(text);
      const next = new URLSearchParams(window.location.search).get("next")?.replaceAll('"', "");
      // Only addresses of this page: a link must not lead a fresh login elsewhere.
      const isOwn = next?.startsWith("/") && !next.startsWith("//");
      void navigate({ to: isOwn && next ? next : paths.jobs });
    },
  });
  return (
    <Center mih="90vh" component="main">
      <Card
        withBorder
        padding="xl"
        w={420}
        component="form"
        onSubmit={(event) => {
          event.preventDefault();
          attempt.mutate(secret.trim());
        }}
      >
        <Stack>
          <Title order={1} size="h2">
            Lockstep
          </Title>
          <Text size="sm" c="dimmed">
            Log in with an access token. <code>lockstep up</code> stores one in your profile;{" "}
            <code>lockstep token create</code> makes another.
          </Text>
          <PasswordInput
            label="Access token"
            placeholder="lsk_…"
            autoFocus
            required
            value={secret}
            onChange={(event) => setSecret(event.currentTarget.value)}
            error={attempt.isError ? sentence(attempt.error) : null}
          />
          <Button type="submit" loading={attempt.isPending} disabled={secret.trim() === ""}>
            Log in
          </Button>
        </Stack>
      </Card>
    </Center>
  );
}
