//! Removes objects of the chunk store that nothing refers to any more, without input. Apart from the other reconcilers: a
//! store that does not answer must not keep them waiting.

use crate::app::App;
use crate::chunk_store::ChunkStore;
use crate::data::store::objects;
use crate::problem::Problem;

/// Looks once. An object is forgotten after it is removed: whatever ends this in between, the next look does it again.
pub(crate) async fn sweep(app: &App) -> Result<(), Problem> {
    let ChunkStore::Objects(store) = &app.chunks else { return Ok(()) };
    let mut tx = app.db.system().await?;
    let due = objects::due(&mut tx, store.url(), app.clock.now()).await?;
    tx.rollback().await?;
    for url in due {
        let removed = store.remove(&url).await;
        let mut tx = app.db.system().await?;
        match removed {
            Ok(()) => objects::forget(&mut tx, &url).await?,
            Err(_) => objects::postpone(&mut tx, &url, app.clock.now()).await?,
        }
        tx.commit().await?;
        removed?;
    }
    Ok(())
}
