package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// errArchived says that an object must be brought back before it can be read.
var errArchived = errors.New("it is archived")

// restoring is how long it is waited before an archived object is looked at again.
const restoreWait = time.Hour

// bringBack asks for the return of an object whose bytes cannot be had because it is archived, and says when to come again
// (retry.Wait); nobody waits here. Any other error is returned as it is.
func (s *Store) requestRestore(ctx context.Context, what string, at location, version string, err error) error {
	if !errors.Is(err, errArchived) {
		return err
	}
	if !s.cfg.Restore {
		return retry.Permanent(fmt.Errorf("%s: %w, and restore is not allowed: %w", what, errArchived, storage.ErrUnsupported))
	}
	if strings.HasPrefix(version, `"`) { // an ETag
		version = ""
	}
	var req minio.RestoreRequest
	req.SetDays(s.cfg.RestoreDays)
	req.SetGlacierJobParameters(minio.GlacierJobParameters{Tier: minio.TierType(s.cfg.RestoreTier)})
	err = s.core.RestoreObject(ctx, at.bucket, at.key, version, req)
	if err != nil && minio.ToErrorResponse(err).Code != "RestoreAlreadyInProgress" {
		return s.translate(ctx, anItem, what+": ask for its return from the archive", err)
	}
	return retry.Wait(fmt.Errorf("%s: %w, and its return was asked for", what, errArchived), s.cfg.now().Add(restoreWait))
}
