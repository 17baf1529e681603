package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Expirer = (*Store)(nil)

// Names in quarantine hold the time: a directory for each day, and in it one for each quarantined file.
const (
	quarantineDay  = "2006-01-02"
	quarantineTime = "150405.000000000"
)

// Expire implements storage.Expirer. It removes files from quarantine. Entries with other names are not the store's and
// stay. Temporary files of dead processes are removed when the store is opened.
func (s *Store) Expire(ctx context.Context, o storage.ExpireOptions) (done storage.Expired, err error) {
	if o.RetainedBefore.IsZero() {
		return done, nil
	}
	sess, err := s.acquireForWrite()
	if err != nil {
		return done, err
	}
	defer s.release(sess)
	days, err := sess.names(quarantineDir)
	if isAbsent(err) {
		return done, nil
	}
	slices.Sort(days)
	for _, day := range days {
		if at, perr := time.Parse(quarantineDay, day); perr != nil || !at.Before(o.RetainedBefore) {
			continue
		}
		if err = s.expireDay(ctx, sess, day, o, &done); err != nil {
			break
		}
	}
	if err != nil {
		return done, fmt.Errorf("remove expired files from quarantine: %w", classify(err))
	}
	return done, nil
}

func (s *Store) expireDay(
	ctx context.Context, sess *session, day string, o storage.ExpireOptions, done *storage.Expired,
) error {
	dir := quarantineDir + "/" + day
	names, err := sess.names(dir)
	if err != nil {
		return err
	}
	left := false
	for _, name := range names {
		if ctx.Err() != nil {
			return storage.ContextErr(ctx)
		}
		retry.Alive(ctx)
		at, err := time.Parse(quarantineDay+quarantineTime, day+name[:min(len(name), len(quarantineTime))])
		if err != nil || !at.Before(o.RetainedBefore) {
			left = true
			continue
		}
		var size int64
		if st, err := sess.stat(dir + "/" + name + "/" + quarantineBytes); err == nil {
			size = st.Size
		} else if !isAbsent(err) {
			return err
		}
		if o.Hold != nil {
			space, err := sess.quarantinedSpace(keptEntry{day: day, name: name})
			if err != nil {
				return err
			}
			if o.Holds(space) {
				left = true
				done.Add(o, storage.Expired{Held: 1})
				continue
			}
		}
		if err := sess.removeFlat(dir + "/" + name); err != nil {
			return err
		}
		done.Add(o, storage.Expired{Retained: 1, Bytes: size})
	}
	if left {
		return nil
	}
	if err := sess.unlink(dir, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// quarantinedSpace returns the space of a file in quarantine; "" if its description is absent or damaged.
func (s *session) quarantinedSpace(e keptEntry) (string, error) {
	doc, err := s.readQuarantineDoc(e)
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case isAbsent(err), isDamaged(err), errors.As(err, &syntax), errors.As(err, &wrongType):
		return "", nil
	case err != nil:
		return "", err
	}
	space, _ := decodeSpace(doc.SpaceDir)
	return space, nil
}
