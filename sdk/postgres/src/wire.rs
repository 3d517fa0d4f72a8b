//! Just enough of Postgres's protocol (version 3, simple query) to ask whether it is there and to create a database,
//! so that neither a client library nor `psql` is needed.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use camino::Utf8Path;

use crate::PostgresError;
use crate::error::IoContext as _;

/// Creating a database copies a template; on a busy disk that takes seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// No message that is expected here comes near.
const MESSAGE_CAP: usize = 1 << 20;
const PROTOCOL: i32 = 3 << 16;
/// SQLSTATE of a server that starts or stops.
const CANNOT_CONNECT_NOW: &str = "57P03";
/// SQLSTATE of a database that is there already.
const DUPLICATE_DATABASE: &str = "42P04";

/// A connection as the cluster's owner.
pub(crate) struct Connection {
    stream: UnixStream,
}

/// A refusal by the server.
struct Refusal {
    code: String,
    message: String,
}

impl Connection {
    /// Connects and says who we are. `None` while the server starts.
    pub(crate) fn open(socket: &Utf8Path, user: &str) -> Result<Option<Self>, PostgresError> {
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error).doing("connect to", socket),
        };
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .doing("set timeouts of", socket)?;
        let mut connection = Self { stream };
        match connection.greet(user).doing("talk to", socket)? {
            None => Ok(Some(connection)),
            Some(refusal) if refusal.code == CANNOT_CONNECT_NOW => Ok(None),
            Some(Refusal { code, message }) => Err(PostgresError::Refused { code, message }),
        }
    }

    fn greet(&mut self, user: &str) -> io::Result<Option<Refusal>> {
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        for text in ["user", user, "database", "postgres"] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        let mut message = length_of(&body)?.to_vec();
        message.append(&mut body);
        self.stream.write_all(&message)?;
        self.read_until_ready()
    }

    /// Runs one statement that answers nothing.
    pub(crate) fn create_database(
        &mut self,
        name: &str,
        socket: &Utf8Path,
    ) -> Result<(), PostgresError> {
        let mut body = format!("CREATE DATABASE \"{name}\"").into_bytes();
        body.push(0);
        let send = |stream: &mut UnixStream| {
            let mut message = vec![b'Q'];
            message.extend_from_slice(&length_of(&body)?);
            message.extend_from_slice(&body);
            stream.write_all(&message)
        };
        send(&mut self.stream).doing("talk to", socket)?;
        match self.read_until_ready().doing("talk to", socket)? {
            None => Ok(()),
            Some(refusal) if refusal.code == DUPLICATE_DATABASE => Ok(()),
            Some(Refusal { code, message }) => Err(PostgresError::Refused { code, message }),
        }
    }

    /// Reads up to "ready for query" or an error that ends the connection; the first error, if one came.
    fn read_until_ready(&mut self) -> io::Result<Option<Refusal>> {
        let mut refusal = None;
        loop {
            let mut head = [0; 5];
            match self.stream.read_exact(&mut head) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && refusal.is_some() => {
                    return Ok(refusal);
                }
                other => other?,
            }
            let [kind, length @ ..] = head;
            let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(0);
            let length = length.checked_sub(4).filter(|length| *length <= MESSAGE_CAP);
            let length =
                length.ok_or_else(|| io::Error::other("a message of impossible length"))?;
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body)?;
            match kind {
                b'Z' => return Ok(refusal),
                b'E' => refusal = refusal.or(Some(parse_error(&body))),
                b'R' if body != [0; 4] => {
                    return Err(io::Error::other("the server asks for a password"));
                }
                _ => {}
            }
        }
    }
}

/// The length that goes before a body: itself included.
fn length_of(body: &[u8]) -> io::Result<[u8; 4]> {
    i32::try_from(body.len() + 4).map(i32::to_be_bytes).map_err(io::Error::other)
}

/// Fields are a letter and a text that ends in zero: `C` is the SQLSTATE, `M` the message.
fn parse_error(body: &[u8]) -> Refusal {
    let mut refusal = Refusal { code: String::new(), message: String::new() };
    for field in body.split(|byte| *byte == 0) {
        match field {
            [b'C', text @ ..] => refusal.code = String::from_utf8_lossy(text).into_owned(),
            [b'M', text @ ..] => refusal.message = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    refusal
}
