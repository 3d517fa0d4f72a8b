//! The API's description, derived from the handlers.

use lockstep_api::ProblemBody;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(title = "Lockstep", description = "A training service for research clusters. Every error is a `ProblemBody`.", license(name = "Apache-2.0", identifier = "Apache-2.0")),
    components(schemas(ProblemBody)),
    modifiers(&Bearer),
    security(("token" = [])),
)]
pub(crate) struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// The description of the routes, with what every operation shares.
pub(crate) fn complete(mut document: utoipa::openapi::OpenApi) -> utoipa::openapi::OpenApi {
    for item in document.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, .. } = item;
        for operation in [get, put, post, delete].into_iter().flatten() {
            let problem =
                ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
            let response = ResponseBuilder::new()
                .description("What went wrong")
                .content("application/problem+json", problem)
                .build();
            operation.responses.responses.insert("default".to_owned(), response.into());
        }
    }
    document
}

/// The document as committed: pretty JSON and a newline.
///
/// # Errors
/// Never in practice; serialization is fallible by type.
pub fn document() -> serde_json::Result<String> {
    let mut text = complete(crate::router::api().to_openapi()).to_pretty_json()?;
    text.push('\n');
    Ok(text)
}
