//! `token …`, `join-token …`, `whoami`.

use lockstep_api::{CreateJoinToken, CreateToken};

use crate::args::{Global, JoinTokenVerb, TokenVerb};
use crate::out::Out;
use crate::settings::client;
use crate::verbs::jobs::time;

/// Makes or revokes access tokens.
pub(crate) async fn token(global: &Global, verb: TokenVerb, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    match verb {
        TokenVerb::Create(args) => {
            let (name, role) = (args.name, args.role);
            let request = CreateToken { name, role, ttl_seconds: args.ttl };
            let token = client.create_token(&request).await?;
            if !out.is_json() {
                out.note(&format!("token {} ({role}); it is shown only now", token.id));
            }
            out.data(&token, |token| token.token.clone())
        }
        TokenVerb::Revoke { id } => {
            client.delete_token(id).await?;
            out.data(&serde_json::json!({ "revoked": id }), |_| format!("revoked {id}"))
        }
    }
}

/// Makes tokens for nodes.
pub(crate) async fn join_token(
    global: &Global,
    verb: JoinTokenVerb,
    out: Out,
) -> anyhow::Result<()> {
    let client = client(global)?;
    match verb {
        JoinTokenVerb::Create { ttl } => {
            let token = client.create_join_token(&CreateJoinToken { ttl_seconds: ttl }).await?;
            if !out.is_json() {
                let until = time(token.expires_at);
                out.note(&format!(
                    "good until {until} for `lockstep-agent --server {} --join-token …`",
                    client.url()
                ));
            }
            out.data(&token, |token| token.token.clone())
        }
    }
}

/// Says who the token speaks for.
pub(crate) async fn whoami(global: &Global, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let me = client.me().await?;
    out.data(&me, |me| {
        format!(
            "{} ({}) in project {} at {}",
            me.principal_name,
            me.role,
            me.project_name,
            client.url()
        )
    })
}
