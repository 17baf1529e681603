package bench

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // a checksum, not a signature
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// Parts measures the codec and the digests in this process and returns the rows in table order.
func Parts(ctx context.Context, cfg Config) ([]Row, error) {
	r := newRunner(cfg)
	return r.measure(ctx, r.partFigures())
}

func (r *runner) partFigures() []figure {
	const library = "protobuf's value alone"
	figures := []figure{
		{"codec: a Change to a record, with key and headers", "ns", library, target{op: "<=", bound: 1000}, r.encode},
		{"codec: a record to a Change", "ns", library, target{op: "<=", bound: 1000}, r.decode},
	}
	for _, size := range []int{2 << 10, 64 << 10, 8 << 20} {
		figures = append(figures, figure{fmt.Sprintf("digests: md5 and sha256 of %d KiB", size>>10), "MiB/s",
			"the standard library's two", target{op: ">=", bound: 1, ratio: true}, r.digestRate(size)})
	}
	return figures
}

// calls measures the nanoseconds per call of ours and peer in turns. It reads the clock once per batch of calls.
func (r *runner) calls(ctx context.Context, batch int, ours, peer func() error) (m measurement, err error) {
	for range r.amounts.rounds {
		for _, side := range []struct {
			call func() error
			into *[]float64
		}{{ours, &m.ours}, {peer, &m.peers}} {
			if ctx.Err() != nil {
				return m, ctx.Err()
			}
			n, start := 0, time.Now()
			for time.Since(start) < r.amounts.callTime {
				for range batch {
					if err := side.call(); err != nil {
						return m, err
					}
				}
				n += batch
			}
			*side.into = append(*side.into, float64(time.Since(start).Nanoseconds())/float64(n))
		}
	}
	return m, nil
}

func (r *runner) encode(ctx context.Context) (measurement, error) {
	c := archive(1).changes[0]
	return r.calls(ctx, 64, func() error {
		_, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
		return err
	}, func() error {
		_, err := proto.Marshal(c)
		return err
	})
}

func (r *runner) decode(ctx context.Context) (measurement, error) {
	rec := archive(1).record(0)
	return r.calls(ctx, 64, func() error {
		_, err := schemas.Decode(rec.Topic, rec.Headers, rec.Value)
		return err
	}, func() error { return proto.Unmarshal(rec.Value, new(pb.Change)) })
}

// digestRate returns a figure that digests streams of size bytes.
func (r *runner) digestRate(size int) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		pool, err := digest.NewPool(digest.MD5, digest.SHA256)
		if err != nil {
			return m, err
		}
		data := make([]byte, size)
		// Hide WriterTo and Seeker: a network stream has neither.
		stream := func() io.Reader { return struct{ io.Reader }{bytes.NewReader(data)} }
		m, err = r.calls(ctx, max(1, 64<<10/size), func() error {
			h, err := pool.Get()
			if err != nil {
				return err
			}
			defer pool.Put(h)
			_, err = h.ReadFrom(stream())
			h.Sum()
			return err
		}, func() error {
			a, b := md5.New(), sha256.New() //nolint:gosec // a checksum, not a signature
			_, err := io.Copy(io.MultiWriter(a, b), stream())
			hex.EncodeToString(a.Sum(nil))
			hex.EncodeToString(b.Sum(nil))
			return err
		})
		for _, side := range [][]float64{m.ours, m.peers} {
			for i, ns := range side {
				side[i] = float64(size) / (1 << 20) / (ns / 1e9)
			}
		}
		return m, err
	}
}
