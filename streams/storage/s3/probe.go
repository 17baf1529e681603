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

// Probe tests the features of the service with temporary objects below .millrace/probe/.
func (s *Store) Probe(ctx context.Context) error {
	f, err := s.probe(ctx)
	if err == nil {
		s.features.Store(f)
	}
	return err
}

// probe reports a condition as supported only if the service refuses a request that violates it: a service that does
// not know a condition ignores it.
func (s *Store) probe(ctx context.Context) (*Features, error) {
	f := new(Features)
	bucket, prefix := s.layout.control()
	name := "probe/" + rand.Text()
	if err := s.putControl(ctx, name, []byte("1")); err != nil {
		return nil, fmt.Errorf("probe the service: %w", err)
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
	try := func(feature *bool, call func() error) {
		ok, err := refused(call())
		if *feature = ok; err != nil {
			errs = append(errs, err)
		}
	}
	try(&f.IfNoneMatch, func() error { return s.putControl(ctx, name, []byte("2"), "If-None-Match", "*") })
	try(&f.IfMatch, func() error {
		return s.putControl(ctx, name, []byte("2"), "If-Match", `"00000000000000000000000000000000"`)
	})
	try(&f.DeleteMatch, func() error {
		return s.deleteControl(ctx, name, "If-Match", `"00000000000000000000000000000000"`)
	})
	if f.IfNoneMatch && f.IfMatch {
		try(&f.Complete, func() error { return s.completeOver(ctx, location{bucket, prefix + name}) })
	}
	if f.IfNoneMatch { // versitygw treats a delete marker as an object
		f.IfNoneMatch = s.putControl(ctx, name+"-gone", []byte("1")) == nil && s.deleteControl(ctx, name+"-gone") == nil &&
			s.putControl(ctx, name+"-gone", []byte("2"), "If-None-Match", "*") == nil
		_ = s.deleteControl(ctx, name+"-gone")
	}
	errs = append(errs, s.probeRaces(ctx, f, name), s.probeKeys(ctx, f, name),
		s.probeSums(ctx, f, location{bucket, prefix + name}))
	v, err := s.core.GetBucketVersioning(ctx, bucket)
	err = s.translate(ctx, aBucket, "get the versioning of the bucket", err)
	if err != nil && !errors.Is(err, storage.ErrUnsupported) {
		errs = append(errs, err)
	}
	f.Versions = s.layout.bucket != "" && v.Enabled()
	if err := errors.Join(errs...); err != nil {
		return f, err
	}
	return f, s.probeCopies(ctx, f, location{bucket, prefix + name})
}

// completeOver completes an upload with If-None-Match: * at a key that has an object.
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

// The number of rounds of concurrent conditional requests, and of requests in each.
const (
	raceRounds = 10
	racers     = 12
)

// probeRaces sends concurrent requests with a condition that only one can meet. It detects with high probability a
// service that checks conditions before the write instead of atomically with it.
func (s *Store) probeRaces(ctx context.Context, f *Features, name string) error {
	bucket, prefix := s.layout.control()
	name += "-race"
	defer func() { _ = s.deleteControl(context.WithoutCancel(ctx), name) }()
	f.Atomic, f.DeletesOnce = f.IfNoneMatch && f.IfMatch, f.DeleteMatch
	var serial atomic.Int64 // makes the bytes of each request different
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
			feature *bool
			do      func(etag string) error
		}{
			{&f.Atomic, func(etag string) error { return put("If-Match", etag) }},
			{&f.DeletesOnce, func(etag string) error { return s.deleteControl(ctx, name, "If-Match", etag) }},
		} {
			info, err := s.core.StatObject(ctx, bucket, prefix+name, s.getOptions())
			if err = translate(ctx, anItem, "stat the probe object", err); err != nil && !isAbsent(err) {
				return err
			}
			won, rerr := countWinners(ctx, func() error { return call.do(`"` + info.ETag + `"`) })
			if rerr != nil {
				return rerr
			}
			if err != nil || won != 1 { // err: absent although a concurrent request has written it
				*call.feature = false
			}
		}
		if !f.Atomic && !f.DeletesOnce {
			break
		}
	}
	return nil
}

// countWinners calls do concurrently and returns the number of calls that succeeded.
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

// probeSums tests which checksums the service returns for an object.
func (s *Store) probeSums(ctx context.Context, f *Features, at location) error {
	h, err := digest.New(digest.SHA256, digest.CRC64NVME)
	if err != nil {
		return err
	}
	text := []byte("which checksums does it return")
	_, _ = h.Write(text)
	sum := h.Sum()
	m := md5.Sum(text)
	for _, try := range []struct {
		send    Features // selects the checksum to send
		feature *bool
		header  string
		want    string
	}{
		{Features{SHA256: true}, &f.SHA256, "X-Amz-Checksum-Sha256", sum[digest.SHA256]},
		{Features{CRC64NVME: true}, &f.CRC64NVME, "X-Amz-Checksum-Crc64nvme", sum[digest.CRC64NVME]},
		{Features{}, &f.ETagIsMD5, "Etag", ""},
	} {
		_, err := s.putObject(ctx, at, payload{text, sum}, &try.send, s.putOptions(objectHeaders{contentType: plainType}))
		if err != nil && try.want != "" { // not supported
			continue
		}
		if err != nil {
			return err
		}
		o := s.getOptions()
		o.Checksum = true
		stat, err := s.statWritten(ctx, at, o, func() string { return "probe object" })
		if err != nil {
			return err
		}
		*try.feature = stat.Headers.Get(try.header) == base64Of(try.want)
		if try.want == "" {
			*try.feature = stat.ETag == hex.EncodeToString(m[:])
		}
	}
	return nil
}

// probeCopies makes the service copy an object in parts and checks the checksums that it returns for them. MinIO
// refuses such copies, and versitygw returns the checksum of the whole object for each part.
func (s *Store) probeCopies(ctx context.Context, f *Features, at location) error {
	alg := f.checksum()
	h, err := digest.New(alg, digest.SHA256)
	if err != nil {
		return err
	}
	first := s.cfg.minPart
	all := bytes.Repeat([]byte("copy "), int(first)/5+2) // a little more than one part
	_, _ = h.Write(all)
	sum := h.Sum()
	headers := objectHeaders{contentType: plainType}
	info, err := s.putObject(ctx, at, payload{all, sum}, &Features{CRC64NVME: f.CRC64NVME}, s.putOptions(headers))
	if err != nil {
		return err
	}
	u, err := s.beginAs(ctx, f, at, headers)
	if err != nil {
		return storage.ContextErr(ctx) // uploads with checksums are not supported, so copies are not either
	}
	u.copyFrom.Store(&copySource{at, storage.Object{ETag: info.ETag}})
	err = errors.Join(u.sendPart(ctx, 1, 0, all[:first]), u.sendPart(ctx, 2, first, all[first:]))
	if err == nil && u.copyFrom.Load() != nil { // both parts were copied, none was sent
		_, _, err = u.complete(ctx, sum, notVerified)
		f.CopiesParts = err == nil
	}
	if f.CopiesParts {
		u.finish(ctx)
	} else {
		u.abort(ctx)
	}
	return storage.ContextErr(ctx)
}
