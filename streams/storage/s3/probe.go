package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Probe tries what the service can do, with objects of the driver's own that it removes.
func (s *Store) Probe(ctx context.Context) error {
	f, err := s.probe(ctx)
	if err == nil {
		s.features.Store(f)
	}
	return err
}

// probe believes in nothing that it has not seen refused: a service that does not know a condition ignores it.
func (s *Store) probe(ctx context.Context) (*Facts, error) {
	f := new(Facts)
	bucket, prefix := s.layout.control()
	name := "probe/" + rand.Text()
	if err := s.putControl(ctx, name, []byte("1")); err != nil {
		return nil, fmt.Errorf("try what the service can do: %w", err)
	}
	defer func() { _ = s.deleteControl(context.WithoutCancel(ctx), name) }()
	refused := func(err error) (bool, error) {
		if errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrNotFound) {
			return true, nil
		}
		if err == nil || errors.Is(err, storage.ErrUnsupported) {
			return false, nil
		}
		return false, err
	}
	var errs []error
	try := func(fact *bool, call func() error) {
		ok, err := refused(call())
		if *fact = ok; err != nil {
			errs = append(errs, err)
		}
	}
	try(&f.IfNoneMatch, func() error { return s.putControl(ctx, name, []byte("2"), "If-None-Match", "*") })
	try(&f.IfMatch, func() error {
		return s.putControl(ctx, name, []byte("2"), "If-Match", `"00000000000000000000000000000000"`)
	})
	try(&f.DeleteMatch, func() error { return s.deleteControl(ctx, name, "If-Match", `"00000000000000000000000000000000"`) })
	if f.IfNoneMatch && f.IfMatch {
		try(&f.Complete, func() error { return s.completeOver(ctx, location{bucket, prefix + name}) })
	}
	if f.IfNoneMatch { // versitygw takes a delete marker for an object
		f.IfNoneMatch = s.putControl(ctx, name+"-gone", []byte("1")) == nil && s.deleteControl(ctx, name+"-gone") == nil &&
			s.putControl(ctx, name+"-gone", []byte("2"), "If-None-Match", "*") == nil
		_ = s.deleteControl(ctx, name+"-gone")
	}
	errs = append(errs, s.probeRaces(ctx, f, name), s.probeKeys(ctx, f, name), s.probeSums(ctx, f, location{bucket, prefix + name}))
	v, err := s.core.GetBucketVersioning(ctx, bucket)
	if err = s.translate(ctx, aBucket, "ask whether the bucket has versions", err); err != nil && !errors.Is(err, storage.ErrUnsupported) {
		errs = append(errs, err)
	}
	f.Versions = s.layout.bucket != "" && v.Enabled()
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	return f, s.probeCopies(ctx, f, location{bucket, prefix + name})
}

// completeOver ends an upload in parts on condition that there is no object, where there is one.
func (s *Store) completeOver(ctx context.Context, at location) error {
	up, err := s.begin(ctx, at, objectHeaders{})
	if err != nil {
		return err
	}
	defer up.abort(ctx)
	if err := up.sendPart(ctx, 1, 0, []byte("3")); err != nil {
		return err
	}
	_, _, err = up.complete(ctx, nil, notVerified, "If-None-Match", "*")
	return err
}

// How often it is tried whether two who write on the same condition can both succeed, and how many do.
const (
	raceRounds = 10
	racers     = 12
)

// probeRaces has several write at once on a condition that only the first can meet. A service that looks first and writes then
// is found out nearly always.
func (s *Store) probeRaces(ctx context.Context, f *Facts, name string) error {
	bucket, prefix := s.layout.control()
	name += "-race"
	defer func() { _ = s.deleteControl(context.WithoutCancel(ctx), name) }()
	f.Atomic, f.DeletesOnce = f.IfNoneMatch && f.IfMatch, f.DeleteMatch
	var serial atomic.Int64 // each has other bytes than all before
	put := func(condition ...string) error {
		return s.putControl(ctx, name, strconv.AppendInt(nil, serial.Add(1), 10), condition...)
	}
	for range raceRounds {
		if won, err := countWinners(ctx, func() error { return put("If-None-Match", "*") }); err != nil {
			return err
		} else if won != 1 {
			f.Atomic = false
		}
		for _, call := range []struct {
			fact *bool
			do   func(etag string) error
		}{
			{&f.Atomic, func(etag string) error { return put("If-Match", etag) }},
			{&f.DeletesOnce, func(etag string) error { return s.deleteControl(ctx, name, "If-Match", etag) }},
		} {
			info, err := s.core.StatObject(ctx, bucket, prefix+name, s.getOptions())
			if err = translate(ctx, anItem, "look at what was tried", err); err != nil && !isAbsent(err) {
				return err
			}
			won, rerr := countWinners(ctx, func() error { return call.do(`"` + info.ETag + `"`) })
			if rerr != nil {
				return rerr
			}
			if err != nil || won != 1 { // it is absent while others write it
				*call.fact = false
			}
		}
		if !f.Atomic && !f.DeletesOnce {
			break
		}
	}
	return nil
}

// race returns how many succeeded.
func countWinners(ctx context.Context, do func() error) (won int, err error) {
	errs := make([]error, racers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = do() })
	}
	all.Wait()
	for _, e := range errs {
		switch {
		case e == nil:
			won++
		case retry.ClassOf(e) == retry.ClassUnavailable, ctx.Err() != nil:
			err = e
		}
	}
	return won, err
}

// probeSums looks which checksums the service tells of what it was sent.
func (s *Store) probeSums(ctx context.Context, f *Facts, at location) error {
	h, err := digest.New(digest.SHA256, digest.CRC64NVME)
	if err != nil {
		return err
	}
	text := []byte("what does it tell of this")
	_, _ = h.Write(text)
	sum := h.Sum()
	m := md5.Sum(text)
	for _, try := range []struct {
		sums   Facts // that are sent
		fact   *bool
		header string
		want   string
	}{
		{Facts{SHA256: true}, &f.SHA256, "X-Amz-Checksum-Sha256", sum[digest.SHA256]},
		{Facts{CRC64NVME: true}, &f.CRC64NVME, "X-Amz-Checksum-Crc64nvme", sum[digest.CRC64NVME]},
		{Facts{}, &f.ETagIsMD5, "Etag", ""},
	} {
		_, err := s.putObject(ctx, at, payload{text, sum}, &try.sums, s.putOptions(objectHeaders{contentType: plainType}))
		if err != nil && try.want != "" { // it does not know this one
			continue
		}
		if err != nil {
			return err
		}
		o := s.getOptions()
		o.Checksum = true
		stat, err := s.statWritten(ctx, at, o, "what was tried")
		if err != nil {
			return err
		}
		*try.fact = stat.Headers.Get(try.header) == base64Of(try.want)
		if try.want == "" {
			*try.fact = stat.ETag == hex.EncodeToString(m[:])
		}
	}
	return nil
}

// probeCopies has the service copy an object part by part, under the checksums that are told of parts: MinIO cannot then, and
// versitygw tells the checksum of the whole object for that of each part.
func (s *Store) probeCopies(ctx context.Context, f *Facts, at location) error {
	alg := f.checksum()
	h, err := digest.New(alg)
	if err != nil {
		return err
	}
	first := s.cfg.minPart
	all := bytes.Repeat([]byte("copy "), int(first)/5+2) // more than a part, and a little
	_, _ = h.Write(all)
	sum := h.Sum()
	info, err := s.putObject(ctx, at, payload{all, sum}, &Facts{CRC64NVME: f.CRC64NVME}, s.putOptions(objectHeaders{contentType: plainType}))
	if err != nil {
		return err
	}
	u, err := s.beginAs(ctx, f, at, objectHeaders{contentType: plainType})
	if err != nil {
		return storage.Ended(ctx) // who cannot begin with checksums does not copy with them
	}
	u.copyFrom.Store(&copySource{at, storage.Object{ETag: info.ETag}})
	err = errors.Join(u.sendPart(ctx, 1, 0, all[:first]), u.sendPart(ctx, 2, first, all[first:]))
	if err == nil && u.copyFrom.Load() != nil { // nothing had to be sent
		_, _, err = u.complete(ctx, sum, notVerified)
		f.CopiesParts = err == nil
	}
	if f.CopiesParts {
		u.finish(ctx)
	} else {
		u.abort(ctx)
	}
	return storage.Ended(ctx)
}
