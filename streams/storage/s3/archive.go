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

// errArchived means that an object must be restored from an archive tier before it can be read.
var errArchived = errors.New("the object is archived")

// restoreWait is the time until an archived object is tried again.
const restoreWait = time.Hour

// requestRestore requests the restoration of an archived object if err is errArchived, and returns an error with the
// time of the next attempt (retry.Wait). It does not wait. Other errors are returned unchanged.
func (s *Store) requestRestore(ctx context.Context, what string, at location, version string, err error) error {
	if !errors.Is(err, errArchived) {
		return err
	}
	if !s.cfg.Restore {
		return retry.Permanent(fmt.Errorf("%s: %w, and restore is not enabled: %w",
			what, errArchived, storage.ErrUnsupported))
	}
	if strings.HasPrefix(version, `"`) { // an ETag
		version = ""
	}
	var req minio.RestoreRequest
	req.SetDays(s.cfg.RestoreDays)
	req.SetGlacierJobParameters(minio.GlacierJobParameters{Tier: minio.TierType(s.cfg.RestoreTier)})
	err = s.core.RestoreObject(ctx, at.bucket, at.key, version, req)
	if err != nil && minio.ToErrorResponse(err).Code != "RestoreAlreadyInProgress" {
		return s.translate(ctx, anItem, what+": restore from the archive", err)
	}
	return retry.Wait(fmt.Errorf("%s: %w, and its restoration was requested", what, errArchived),
		s.cfg.now().Add(restoreWait))
}
