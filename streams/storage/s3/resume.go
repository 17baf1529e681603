package s3

import (
	"cmp"
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

	"github.com/millrace/millrace/streams/storage"
)

// A Put in parts that ends before its end leaves what it has sent. The next one of the same item, with the same metadata
// and the same size, goes on with it, also in another process: it reads all bytes again, and does not send those parts of
// which the service tells the checksum that they have. Metadata is fixed when an upload begins and is told by nobody, so an
// upload of several parts has a record, .millrace/uploads/<sha256 of all that is fixed>. What nobody goes on with is
// ended by age. Two processes may go on with one upload at once: each completes it with the parts that it knows, by their
// ETags, so one of them has wasted its work, and no bytes are mixed.

// resumeParts is from which part on an upload has a record: below it is quicker to send them again.
const resumeParts = 8

// A plan is how a Put is divided: parts of so many bytes, of so many in all, negative where nobody knows.
type partPlan struct{ part, size int64 }

type uploadRecord struct {
	Upload string `json:"upload"`
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
}

// work notes that this process is, or is not, at work on an upload.
func (s *Store) setActive(id string, at bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at {
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

// beginAgain goes on with an upload that was left, or begins one.
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

// recordName names an upload by all that is fixed when it begins.
func (s *Store) recordName(to location, with objectHeaders, p partPlan) (string, error) {
	text, err := json.Marshal([]any{to.bucket, to.key, with.contentType, with.meta, p.part, p.size, s.features.Load().CRC64NVME,
		s.cfg.Encryption, s.cfg.KMSKey, s.cfg.StorageClass})
	if err != nil {
		return "", fmt.Errorf("name an upload: %w", err)
	}
	sum := sha256.Sum256(text)
	return "uploads/" + hex.EncodeToString(sum[:]), nil
}

// left returns an upload that somebody has left; nil where there is none, or this process is at work on it.
func (s *Store) findResumable(ctx context.Context, to location, name string) (*upload, error) {
	r, err := s.readRecord(ctx, name)
	if err != nil || r.Upload == "" || r.Bucket != to.bucket || r.Key != to.key || s.isActive(r.Upload) {
		return nil, err
	}
	u := &upload{s: s, location: to, id: r.Upload, features: s.features.Load(), record: name, recorded: true,
		existing: map[int]minio.ObjectPart{}, parts: map[int]minio.CompletePart{}}
	there, err := u.listParts(ctx, func(p minio.ObjectPart) { u.existing[p.PartNumber] = p })
	var r403 *serviceError
	if errors.As(err, &r403) && r403.status == http.StatusForbidden || errors.Is(err, storage.ErrUnsupported) { // who may not look begins anew
		return nil, nil
	}
	if err != nil || !there {
		return nil, err
	}
	s.setActive(u.id, true)
	return u, nil
}

// readRecord returns an empty record where there is none that can be read.
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

// list tells of the parts that the service has; false: it has no such upload.
func (u *upload) listParts(ctx context.Context, each func(minio.ObjectPart)) (there bool, err error) {
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

// note records the upload when it has become worth it.
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

// worth says that somebody can go on with it.
func (u *upload) isRecorded() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.recorded
}

// unrecord forgets the record of an upload that is no more. What is left of it does no harm: it leads nowhere.
func (u *upload) unrecord(ctx context.Context) {
	if u.record != "" && u.isRecorded() {
		_ = u.s.deleteControl(ctx, u.record)
	}
}

// sweep ends uploads in parts that processes which died have left, and returns how many: those that are old, and of which no part
// is young, by the service's clock.
func (s *Store) abortStaleUploads(ctx context.Context, space string) (ended int, err error) {
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return 0, err
	}
	before := s.cfg.now().Add(-s.cfg.staleAfter)
	for key, id := "", ""; ; {
		asked, answer := withHeaders(ctx)
		page, err := s.core.ListMultipartUploads(asked, bucket, prefix, key, id, "", 1000)
		if err != nil {
			return ended, s.translate(ctx, aBucket, fmt.Sprintf("list uploads of space %q", space), err)
		}
		if at := answer.responseDate(); !at.IsZero() {
			before = at.Add(-s.cfg.staleAfter)
		}
		for _, u := range page.Uploads {
			if !strings.HasPrefix(u.Key, prefix) || s.isActive(u.UploadID) || !u.Initiated.Before(before) {
				continue
			}
			old := &upload{s: s, location: location{bucket, u.Key}, id: u.UploadID}
			dead, err := old.abortIfOlder(ctx, before)
			if err != nil {
				return ended, err
			}
			if dead {
				ended++
			}
		}
		if !page.IsTruncated {
			return ended, s.removeStaleRecords(ctx, bucket, prefix, before)
		}
		if c := cmp.Or(cmp.Compare(page.NextKeyMarker, key), cmp.Compare(page.NextUploadIDMarker, id)); c == 0 || page.NextKeyMarker < key {
			return ended, fmt.Errorf("list uploads of space %q: %w", space, errListingLoop)
		}
		key, id = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// endIfOlder ends an upload unless it has a part that is not older than a time.
func (u *upload) abortIfOlder(ctx context.Context, before time.Time) (ended bool, err error) {
	young := false
	there, err := u.listParts(ctx, func(p minio.ObjectPart) { young = young || !p.LastModified.Before(before) })
	if err != nil || !there || young {
		return false, err
	}
	err = u.s.core.AbortMultipartUpload(ctx, u.bucket, u.key, u.id)
	if minio.ToErrorResponse(err).Code == "NoSuchUpload" {
		return false, nil
	}
	return err == nil, u.s.translate(ctx, anUpload, fmt.Sprintf("end upload %s of %q", u.id, u.key), err)
}

// sweepRecords removes records of uploads below a prefix that are no more.
func (s *Store) removeStaleRecords(ctx context.Context, bucket, prefix string, before time.Time) error {
	own, at := s.layout.control()
	ctx, cancel := context.WithCancel(withListing(ctx))
	defer cancel()
	for info := range s.core.ListObjectsIter(ctx, own, minio.ListObjectsOptions{Prefix: at + "uploads/", Recursive: true}) {
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
		there, err := u.listParts(ctx, func(minio.ObjectPart) {})
		if err == nil && !there {
			err = s.deleteControl(ctx, name)
		}
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
	return storage.Ended(ctx)
}
