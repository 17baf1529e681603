package app

import (
	"bytes"
	"crypto/md5" //nolint:gosec // a digest, not a secret
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// A program encrypts a whole space of the source: the limit of copies is replaced, the others keep their content and
// are on one list, which an operator approves. Rewrites after the approval are on another list, which is refused.
func TestRewritesAndLists(t *testing.T) {
	need.Full(t)
	const limit, all, later = 20, 60, 5
	s := newSite(t)
	s.cfg.Replaced.MaxShare, s.cfg.Replaced.MaxCount = 1, limit
	x := s.archive(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink,
		schemas.RoleDelayer)
	path := func(store int, n int) string { return x.path(store, fmt.Sprintf("item-%03d", n)) }
	write := func(op pb.Op, content string, n int) {
		var changes []schemas.Message
		at := time.Now().Truncate(time.Millisecond)
		for i := range n {
			text := fmt.Appendf(nil, "%s %d", content, i)
			x.must(os.WriteFile(path(0, i), text, 0o600))
			x.must(os.Chtimes(path(0, i), at, at))
			sum := md5.Sum(text) //nolint:gosec // a digest, not a secret
			c := &pb.Change{Op: op, Account: "acme", Store: "1", Space: "photos", Item: filepath.Base(path(0, i)),
				Size: int64(len(text)), Digests: map[string]string{"md5": hex.EncodeToString(sum[:])},
				Time: timestamppb.New(at), Origin: pb.Origin_ORIGIN_CLIENT}
			c.Id = schemas.ChangeID(c)
			changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
		}
		x.publish(changes...)
	}
	copies := func(content string) (n int) {
		for i := range all {
			if b, err := os.ReadFile(path(1, i)); err == nil && bytes.HasPrefix(b, []byte(content+" ")) {
				n++
			}
		}
		return n
	}
	open := func() []*pb.Incident { return x.open(incident.RewritesHeld) }
	waiting := func() uint64 { return x.waiting(incident.RewritesHeld) }
	a, ctx := x.app, t.Context()
	s.inForce(a, "acme", "2")
	write(pb.Op_OP_ADD, "plain", all)
	s.untilTrue("the copies", func() bool { return copies("plain") == all })
	write(pb.Op_OP_UPDATE, "encrypted", all)
	s.untilTrue("the list", func() bool { return waiting() == all-limit })
	if n := copies("encrypted"); n != limit || copies("plain") != all-limit {
		t.Fatalf("%d copies replaced, want %d", n, limit)
	}
	list := open()[0]
	s.untilTrue("the count", func() bool {
		steps := open()[0].GetSteps()
		return strings.HasPrefix(steps[len(steps)-1].GetDetail(), fmt.Sprintf("%d rewrites wait", all-limit))
	})
	if _, n, err := a.DecideList(ctx, list, Actor{Who: "ann"}, held.ActionApprove); err != nil || n != all-limit {
		t.Fatalf("approved %d: %v", n, err)
	}
	s.untilTrue("the rewrites of the list", func() bool { return copies("encrypted") == all && len(open()) == 0 })
	write(pb.Op_OP_UPDATE, "again", later) // the limit of the hour is still reached
	s.untilTrue("the next list", func() bool { return waiting() == later })
	if next := open()[0]; copies("encrypted") != all || list.GetSubject() != "rewrites-1" ||
		next.GetSubject() != "rewrites-2" {
		t.Errorf("%d copies kept, list %s after %s", copies("encrypted"), next.GetSubject(), list.GetSubject())
	}
	// Refused, the sources get the content of the copies again.
	_, n, err := a.DecideList(ctx, open()[0], Actor{Who: "ann", Reason: "a program"}, held.ActionRefuse)
	if err != nil || n != later {
		t.Fatalf("refused %d: %v", n, err)
	}
	s.untilTrue("the sources", func() bool { return len(open()) == 0 })
	for i := range all {
		if b, err := os.ReadFile(path(0, i)); err != nil || string(b) != fmt.Sprintf("encrypted %d", i) {
			t.Errorf("source %d holds %q, %v", i, b, err)
		}
	}
	if n := copies("encrypted"); n != all {
		t.Errorf("%d copies", n)
	}
}
