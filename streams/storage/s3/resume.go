package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// An interrupted multipart Put leaves its upload. The next Put of the same item with the same metadata and size resumes
// it, also in another process: it reads all bytes again, and does not send a part if the service reports the checksum
// of the part. The metadata of an upload is fixed when it begins and cannot be queried, so an upload of several parts
// has a record, .millrace/uploads/<SHA-256 of all fixed parameters>. Uploads that are not resumed are aborted by age.
// If two processes resume the same upload, each completes it with its own parts, by their ETags: one of them wastes its
// work, but their bytes are never mixed.

// resumeParts is the number of parts from which an upload has a record. With fewer, sending them again is faster.
const resumeParts = 8

// A partPlan holds the sizes of a part and of the whole object. size is negative if unknown.
type partPlan struct{ part, size int64 }

type uploadRecord struct {
	Upload string `json:"upload"`
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
}

// setActive records whether this process uses an upload.
func (s *Store) setActive(id string, active bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if active {
		s.activeUploads[id] = true
	} else {
		delete(s.activeUploads, id)
	}
}

func (s *Store) isActive(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.activeUploads[id]
}

// resumeOrBegin resumes an interrupted upload, or begins a new one.
func (s *Store) resumeOrBegin(ctx context.Context, to location, with objectHeaders, p partPlan) (*upload, error) {
	if p.size >= 0 && p.size < resumeParts*p.part {
		return s.begin(ctx, to, with)
	}
	name, err := s.recordName(to, with, p)
	if err != nil {
		return nil, err
	}
	u, err := s.findResumable(ctx, to, name)
	if err != nil || u != nil {
		return u, err
	}
	if u, err = s.begin(ctx, to, with); err == nil {
		u.record = name
	}
	return u, err
}

// recordName returns the name of an upload's record, a hash of all parameters that are fixed when it begins.
func (s *Store) recordName(to location, with objectHeaders, p partPlan) (string, error) {
	text, err := json.Marshal([]any{
		to.bucket, to.key, with.contentType, with.meta, p.part, p.size, s.features.Load().CRC64NVME,
		s.cfg.Encryption, s.cfg.KMSKey, s.cfg.StorageClass,
	})
	if err != nil {
		return "", fmt.Errorf("name an upload: %w", err)
	}
	sum := sha256.Sum256(text)
	return "uploads/" + hex.EncodeToString(sum[:]), nil
}

// findResumable returns the upload of a record. It is nil if there is none, if this process already uses it, or if the
// credentials do not permit listing its parts.
func (s *Store) findResumable(ctx context.Context, to location, name string) (*upload, error) {
	r, err := s.readRecord(ctx, name)
	if err != nil || r.Upload == "" || r.Bucket != to.bucket || r.Key != to.key || s.isActive(r.Upload) {
		return nil, err
	}
	u := &upload{s: s, location: to, id: r.Upload, features: s.features.Load(), record: name, recorded: true,
		existing: map[int]minio.ObjectPart{}, parts: map[int]minio.CompletePart{}}
	exists, err := u.listParts(ctx, func(p minio.ObjectPart) { u.existing[p.PartNumber] = p })
	var service *serviceError
	forbidden := errors.As(err, &service) && service.status == http.StatusForbidden
	if forbidden || errors.Is(err, storage.ErrUnsupported) {
		return nil, nil
	}
	if err != nil || !exists {
		return nil, err
	}
	s.setActive(u.id, true)
	return u, nil
}

// readRecord returns an empty record if there is none, or if it cannot be decoded.
func (s *Store) readRecord(ctx context.Context, name string) (r uploadRecord, err error) {
	text, err := s.getControl(ctx, name)
	if err != nil {
		if isAbsent(err) {
			err = nil
		}
		return r, err
	}
	if json.Unmarshal(text, &r) != nil {
		r = uploadRecord{}
	}
	return r, nil
}

// listParts calls each for every part of the upload. exists is false if there is no such upload.
func (u *upload) listParts(ctx context.Context, each func(minio.ObjectPart)) (exists bool, err error) {
	for marker := 0; ; {
		page, err := u.s.core.ListObjectParts(ctx, u.bucket, u.key, u.id, marker, 1000)
		if code := minio.ToErrorResponse(err).Code; code == "NoSuchUpload" || code == "NoSuchKey" {
			return false, nil
		}
		if err != nil {
			return false, u.s.translate(ctx, anUpload, "list the parts of an upload", err)
		}
		for _, p := range page.ObjectParts {
			each(p)
		}
		if !page.IsTruncated {
			return true, nil
		}
		if page.NextPartNumberMarker <= marker {
			return false, fmt.Errorf("list the parts of an upload: %w", errListingLoop)
		}
		marker = page.NextPartNumberMarker
	}
}

// recordOnce writes the record of the upload after part resumeParts.
func (u *upload) recordOnce(ctx context.Context, n int) error {
	if n != resumeParts || u.record == "" {
		return nil
	}
	u.mu.Lock()
	done := u.recorded
	u.recorded = true
	u.mu.Unlock()
	if done {
		return nil
	}
	text, err := json.Marshal(uploadRecord{u.id, u.bucket, u.key})
	if err != nil {
		return fmt.Errorf("record an upload: %w", err)
	}
	return u.s.putControl(ctx, u.record, text)
}

// isRecorded reports whether the upload can be resumed.
func (u *upload) isRecorded() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.recorded
}

// unrecord deletes the record of an upload that no longer exists. An error is ignored: such a record is harmless.
func (u *upload) unrecord(ctx context.Context) {
	if u.record != "" && u.isRecorded() {
		_ = u.s.deleteControl(ctx, u.record)
	}
}

// abortStaleUploads aborts the uploads of dead processes below a prefix and returns their number. An upload is stale if
// it and all its parts are older than staleAfter by the service's clock.
func (s *Store) abortStaleUploads(ctx context.Context, bucket, prefix string) (ended int, err error) {
	what := fmt.Sprintf("list uploads below %q in bucket %q", prefix, bucket)
	before := s.cfg.now().Add(-s.cfg.staleAfter)
	for key, id := "", ""; ; {
		listCtx, response := withHeaders(ctx)
		page, err := s.core.ListMultipartUploads(listCtx, bucket, prefix, key, id, "", 1000)
		if err != nil {
			return ended, s.translate(ctx, aBucket, what, err)
		}
		retry.Alive(ctx)
		if at := response.responseDate(); !at.IsZero() {
			before = at.Add(-s.cfg.staleAfter)
		}
		for _, u := range page.Uploads {
			if !strings.HasPrefix(u.Key, prefix) || s.isActive(u.UploadID) || !u.Initiated.Before(before) {
				continue
			}
			old := &upload{s: s, location: location{bucket, u.Key}, id: u.UploadID}
			aborted, err := old.abortIfOlder(ctx, before)
			if err != nil {
				return ended, err
			}
			if aborted {
				ended++
			}
		}
		if !page.IsTruncated {
			return ended, s.removeStaleRecords(ctx, bucket, prefix, before)
		}
		same := page.NextKeyMarker == key && page.NextUploadIDMarker == id
		if same || page.NextKeyMarker < key {
			return ended, fmt.Errorf("%s: %w", what, errListingLoop)
		}
		key, id = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// abortIfOlder aborts an upload unless one of its parts is not older than before.
func (u *upload) abortIfOlder(ctx context.Context, before time.Time) (aborted bool, err error) {
	recent := false
	exists, err := u.listParts(ctx, func(p minio.ObjectPart) { recent = recent || !p.LastModified.Before(before) })
	if err != nil || !exists || recent {
		return false, err
	}
	err = u.s.core.AbortMultipartUpload(ctx, u.bucket, u.key, u.id)
	if minio.ToErrorResponse(err).Code == "NoSuchUpload" {
		return false, nil
	}
	return err == nil, u.s.translate(ctx, anUpload, fmt.Sprintf("abort upload %s of %q", u.id, u.key), err)
}

// removeStaleRecords removes the records of uploads below a prefix that no longer exist, if they are older than before.
func (s *Store) removeStaleRecords(ctx context.Context, bucket, prefix string, before time.Time) error {
	control, at := s.layout.control()
	ctx, cancel := context.WithCancel(withListing(ctx))
	defer cancel()
	o := minio.ListObjectsOptions{Prefix: at + "uploads/", Recursive: true}
	for info := range s.core.ListObjectsIter(ctx, control, o) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, "list records of uploads", info.Err)
		}
		if !info.LastModified.Before(before) {
			continue
		}
		ctx := context.WithValue(ctx, exchangeKey{}, nil)
		name := strings.TrimPrefix(info.Key, at)
		r, err := s.readRecord(ctx, name)
		if err != nil {
			return err
		}
		if r.Bucket != bucket || !strings.HasPrefix(r.Key, prefix) {
			continue
		}
		u := &upload{s: s, location: location{r.Bucket, r.Key}, id: r.Upload}
		exists, err := u.listParts(ctx, func(minio.ObjectPart) {})
		if err == nil && !exists {
			err = s.deleteControl(ctx, name)
		}
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
	return storage.ContextErr(ctx)
}
