//! What libraries call a tensor in their files, and what it is called here.

use std::borrow::Cow;

use lockstep_api::ArchSpec;

/// The names of an architecture's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// As they are.
    Plain,
    Gpt2 {
        /// Whether the head uses the token embedding's weights.
        is_tied: bool,
    },
    Bert,
    Vit,
}

/// The head's weights, which a file may leave out if they are the embedding's.
const HEAD: &str = "lm_head.weight";
const TOKENS: &str = "transformer.wte.weight";

impl Names {
    pub(crate) fn of(arch: &ArchSpec) -> Self {
        match arch {
            ArchSpec::Gpt2(spec) => Self::Gpt2 { is_tied: spec.tie_word_embeddings },
            ArchSpec::Bert(_) => Self::Bert,
            ArchSpec::Vit(_) => Self::Vit,
            ArchSpec::Mlp(_)
            | ArchSpec::Layers(_)
            | ArchSpec::Resnet18(_)
            | ArchSpec::Resnet34(_)
            | ArchSpec::Resnet50(_) => Self::Plain,
        }
    }

    /// The prefix that files of the model without its head lack, unless one of these names has it.
    pub(crate) fn missing_prefix<'a>(
        self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Option<&'static str> {
        let prefix = match self {
            Self::Gpt2 { .. } => "transformer.",
            Self::Bert => "bert.",
            Self::Plain | Self::Vit => return None,
        };
        (!names.any(|name| name.starts_with(prefix))).then_some(prefix)
    }

    /// The tensor's name in this model's state dict.
    pub(crate) fn canonical<'a>(self, name: &'a str, prefix: Option<&str>) -> Cow<'a, str> {
        let is_head = ["lm_head.", "classifier.", "cls."].iter().any(|it| name.starts_with(it));
        let name: Cow<'a, str> = match prefix {
            Some(prefix) if !is_head => Cow::Owned(format!("{prefix}{name}")),
            _ => Cow::Borrowed(name),
        };
        let renamed: &[(&str, &str)] = match self {
            // The first checkpoints call a norm's weight and bias so.
            Self::Bert => {
                &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]
            }
            // torchvision's first version of its feed-forward part.
            Self::Vit => &[(".mlp.linear_1.", ".mlp.0."), (".mlp.linear_2.", ".mlp.3.")],
            Self::Plain | Self::Gpt2 { .. } => &[],
        };
        match renamed.iter().find(|(old, _)| name.contains(old)) {
            Some((old, new)) => Cow::Owned(name.replace(old, new)),
            None => name,
        }
    }

    /// Whether a tensor is a constant that libraries once saved along: causal masks, positions.
    pub(crate) fn is_constant(self, canonical: &str) -> bool {
        match self {
            Self::Gpt2 { .. } => {
                canonical.ends_with(".attn.bias") || canonical.ends_with(".attn.masked_bias")
            }
            Self::Bert => matches!(
                canonical,
                "bert.embeddings.position_ids" | "bert.embeddings.token_type_ids"
            ),
            Self::Plain | Self::Vit => false,
        }
    }

    /// The parameter that a tensor is another name of.
    pub(crate) fn same_as(self, canonical: &str) -> Option<&'static str> {
        match self {
            Self::Gpt2 { is_tied: true } if canonical == HEAD => Some(TOKENS),
            _ => None,
        }
    }
}
