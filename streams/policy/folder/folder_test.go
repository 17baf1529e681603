package folder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// A refused document is named with file, line and cause, and read again until it is corrected. The others are active
// meanwhile, and are not read again.
func TestRefusedDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		dir, write := folderOf(t, map[string]string{"duplication-accounts.json": `["acme", "bell"]`,
			"acme-duplication-policy.yaml": to("2"), "bell-duplication-policy.yaml": "# of bell\n" + to("7")})
		p := s.run(dir)
		file := filepath.Join(dir, "bell-duplication-policy.yaml")
		p.refuses(file + `:3:21: defaultPolicies[0].destStoreId: unknown store "7"; the account has 1, 2`)
		p.inForce("acme", "2")
		later()
		p.logged(`msg="refuse policy: the account has no active one, and the file is read again until it is corrected" `+
			`account=bell file=`+file+":3:21 err=", 1)

		write("acme-duplication-policy.yaml", to("3"))
		write("bell-duplication-policy.yaml", "default: 1\n")
		later()
		p.refuses(file + ":1:1: default: unknown key")
		write("bell-duplication-policy.yaml", to("2"))
		later()
		p.refuses()
		p.inForce("bell", "2")
		p.inForce("acme", "2")
		p.logged("accept policy", 1)
	})
}

// While documents are refused, other documents are published as soon as possible, also those of accounts that the list
// of accounts lacked.
func TestMendedListOfAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		dir, write := folderOf(t, map[string]string{"duplication-accounts.json": `["acne", "bell"]`,
			"acme-duplication-policy.yaml": to("2"), "bell-duplication-policy.yaml": to("2")})
		p := s.run(dir)
		p.refuses(`the configuration has no account "acne"; did you mean acme?`)
		p.inForce("bell", "2")
		p.revision("acme", 0)
		write("bell-duplication-policy.yaml", "default: 1\n") // it is active, and not read again
		write("duplication-accounts.json", `["acme", "bell"]`)
		later()
		p.refuses()
		p.inForce("acme", "2")
		p.inForce("bell", "2")
	})
}

// The log says whether a policy stays active when a document is refused.
func TestRefusedPolicyLeavesTheLastOneInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		dir, write := ofAcme(t, to("2"))
		s.run(dir)
		write(to("7"))
		p := s.run(dir)
		p.inForce("acme", "2")
		p.logged("refuse policy: the last good one stays active", 1)
	})
}

// A restarted process with an older folder does not publish the older document, and no process reverts a policy that a
// operator has published. An incident is open until the file or the policy changes.
func TestRestartRevertsNoPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		older, write := ofAcme(t, to("2"))
		s.run(older)
		newer, writeNewer := ofAcme(t, to("3"))
		first := s.run(newer)
		later()
		first.inForce("acme", "3")

		var late *process
		for range 2 { // once more, as when it is killed
			late = s.run(older)
			late.refuses()
			late.inForce("acme", "3")
			late.revision("acme", 2)
			late.incident(incident.PolicyDiverged, true)
		}
		write("-")
		late = s.run(older)
		late.refuses("acme-duplication-policy.yaml")
		write(to("2"))
		later()
		late.refuses()
		late.revision("acme", 2)
		late.incident(incident.PolicyDiverged, true)
		write(to("3"))
		later()
		late.incident(incident.PolicyDiverged, false)

		must(t, late.Set(t.Context(), "acme", document(t, "{}"), "ann"))
		late = s.run(newer)
		if doc, ok := late.registry.Document("acme"); !ok || len(doc.Default) != 0 {
			t.Errorf("in force: %v, want what ann has published", doc)
		}
		late.incident(incident.PolicyDiverged, true)
		writeNewer("# again\n" + to("3"))
		later()
		late.inForce("acme", "3")
		late.incident(incident.PolicyDiverged, false)
	})
}

// Many policies are published together. The next start publishes only the changed ones.
func TestManyPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		names := make([]string, need.Amount(200, 2000, 2000))
		accounts, files := map[string][]policy.Store{}, map[string]string{}
		for i := range names {
			id := fmt.Sprintf("a%d", i)
			names[i], accounts[id] = `"`+id+`"`, []policy.Store{{ID: "1"}, {ID: "2"}}
			files[id+"-duplication-policy.yaml"] = to("2")
		}
		files["duplication-accounts.json"] = "[" + strings.Join(names, ",") + "]"
		dir, write := folderOf(t, files)
		p := s.late(dir, accounts)
		p.follow()
		apply := func() {
			t.Helper()
			must(t, p.apply(t.Context(), p.read()))
		}
		apply()
		for account := range accounts {
			p.revision(account, 1)
		}
		if s.calls != 1 {
			t.Errorf("they were published in %d calls, want 1", s.calls)
		}
		write("a7-duplication-policy.yaml", to("2")+"# again\n")
		apply()
		p.revision("a6", 1)
		p.revision("a7", 2)
	})
}

// An invalid document is an error of the caller and is not published.
func TestSetRefuses(t *testing.T) {
	s := &site{t: t}
	p := s.process("")
	for _, account := range []string{"acme", "nobody"} {
		var faults policy.Faults
		if err := p.Set(t.Context(), account, document(t, to("9")), "test"); !errors.As(err, &faults) {
			t.Errorf("%s: got %v", account, err)
		}
		p.revision(account, 0)
	}
}

// Of two writers that publish on top of the same revision, the second gets an error that names the first, unless their
// documents are equal.
func TestWriterThatLostIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		second string
		lost   bool
	}{
		"another document":  {"3", true},
		"the same document": {"2", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{t: t}
				first, second := s.process(""), s.late("", defaultAccounts())
				must(t, first.Set(t.Context(), "acme", document(t, to("2")), "first"))
				done := make(chan error, 1)
				go func() { done <- second.Set(t.Context(), "acme", document(t, to(tt.second)), "second") }()
				later()
				second.follow()
				var lost *policy.LostError
				switch err := <-done; {
				case !tt.lost && err != nil:
					t.Errorf("got %v", err)
				case tt.lost && (!errors.As(err, &lost) || lost.Account != "acme" || lost.Revision != 1 || lost.By != "first"):
					t.Errorf("got %v, want that first published revision 1", err)
				}
				first.revision("acme", 1)
				first.inForce("acme", "2")
			})
		})
	}
}

// The document of a folder is published again on top of one that another writer published meanwhile.
func TestFolderThatLostPublishesOnTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		first := s.process("")
		must(t, first.Set(t.Context(), "acme", document(t, to("2")), "first"))
		dir, _ := ofAcme(t, to("2", "3"))
		second := s.late(dir, defaultAccounts())
		done := make(chan error, 1)
		go func() { done <- second.apply(t.Context(), second.read()) }()
		later()
		second.follow()
		must(t, <-done)
		first.inForce("acme", "2", "3")
		first.revision("acme", 2)
		second.logged("publish policies again: another writer was first", 1)
	})
}

// A document whose publisher died before reading it back is not published again.
func TestPolicyIsPublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		p, killed := s.process(""), s.late("", defaultAccounts())
		ctx, kill := context.WithCancel(t.Context())
		done := make(chan error, 1)
		acme := map[string]policy.Document{"acme": document(t, to("2"))}
		sums := map[string]string{"acme": "5d41402abc4b2a76b9719d911017c592"}
		go func() { done <- killed.publish(ctx, acme, sums, "test") }()
		later()
		kill()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
		p.inForce("acme", "2")
		must(t, p.Set(t.Context(), "acme", acme["acme"], "test"))
		must(t, p.publish(t.Context(), acme, sums, "test"))
		if n := s.policies(); n != 1 {
			t.Errorf("the topic policies has %d records, want 1", n)
		}
	})
}

// Nothing is published over a record that cannot be decoded, until an operator has closed the incident of that record.
func TestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		dir, write := ofAcme(t, to("2"))
		s.run(dir)
		about := incident.Subject{Kind: incident.RecordUnreadable, Name: "policies/0@1"}
		p := s.process(dir)
		p.deps.Unreadable = func(string) []incident.Subject { return []incident.Subject{about} }
		p.registry.Unreadable([]byte("acme"), time.Now(), errors.New("garbage"))
		must(t, p.board.Open(t.Context(), about, "garbage"))
		write(to("2", "3"))
		apply := func() {
			t.Helper()
			must(t, p.apply(t.Context(), p.read()))
		}
		apply()
		p.inForce("acme", "2")
		p.incident(incident.PolicyDiverged, true)
		p.refuses("account acme: a record after revision 1 cannot be decoded")
		must(t, p.board.CloseBy(t.Context(), about.Key(), &pb.AdminAction{Id: "1", Who: "eve"}))
		p.refuses()
		apply()
		p.inForce("acme", "2", "3")
		p.incident(incident.PolicyDiverged, false)
	})
}

// incidentRecords are the incidents that a folder publishes.
type incidentRecords struct {
	published []string // state and detail
	err       error    // of the next one
}

func (r *incidentRecords) Publish(_ context.Context, msgs ...schemas.Message) error {
	if err := r.err; err != nil {
		r.err = nil
		return err
	}
	for _, m := range msgs {
		i := m.Body.(*pb.Incident)
		word := "open: "
		if i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED {
			word = "closed: "
		}
		r.published = append(r.published, word+i.GetSteps()[len(i.GetSteps())-1].GetDetail())
	}
	return nil
}

// Two processes with different folders open one incident, however long they run. Each logs its reason when it starts.
func TestFoldersThatDifferOpenOneIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records incidentRecords
		s := &site{t: t}
		one, two := s.process(""), s.process("")
		one.deps.Board = incident.NewBoard(&records, slog.New(slog.DiscardHandler))
		two.deps.Board = one.deps.Board
		acme := policy.Folder{Documents: map[string]policy.Document{"acme": {}}}
		for range 30 {
			one.reportDiverged(t.Context(), acme, map[string]string{"acme": "file 1"})
			time.Sleep(one.config.Interval)
			two.reportDiverged(t.Context(), acme, map[string]string{"acme": "file 2"})
			time.Sleep(time.Minute)
		}
		if want := []string{"open: file 1"}; !slices.Equal(records.published, want) {
			t.Errorf("published %q, want %q", records.published, want)
		}
		for _, p := range []*process{one, two} {
			p.logged("do not publish diverged policy", 1)
		}
	})
}

// The incident of a diverged document is closed when the divergence ends, also after failed
// publications.
func TestDivergedPolicyIsOver(t *testing.T) {
	acme := policy.Folder{Documents: map[string]policy.Document{"acme": {}}}
	faulty := policy.Folder{Faults: policy.Faults{{Account: "acme", Reason: "syntax"}}}
	for name, tt := range map[string]struct {
		then []policy.Folder
		err  error
		want string // the newest record; empty: the incident stays open
	}{
		"refused":                   {[]policy.Folder{faulty}, nil, ""},
		"the folder cannot be read": {[]policy.Folder{{Faults: policy.Faults{{Reason: "no such folder"}}}}, nil, ""},
		"refused, and in force": {[]policy.Folder{faulty, acme}, nil,
			"closed: the document of the folder is active"},
		"refused, and removed": {[]policy.Folder{faulty, {}}, nil,
			"closed: the folder has no document of the account"},
		"in force, and Kafka fails once": {[]policy.Folder{acme, {}}, errors.New("away"),
			"closed: the document of the folder is active"},
		"removed, and Kafka fails once": {[]policy.Folder{{}, {}}, errors.New("away"),
			"closed: the folder has no document of the account"},
		"in force, and Kafka fails still": {[]policy.Folder{acme}, errors.New("away"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var records incidentRecords
			p := (&site{t: t}).process("")
			p.deps.Board = incident.NewBoard(&records, slog.New(slog.DiscardHandler))
			p.reportDiverged(t.Context(), acme, map[string]string{"acme": "another"})
			records.err = tt.err
			for _, f := range tt.then {
				for account := range f.Documents {
					p.active[account] = "sum"
				}
				p.reportDiverged(t.Context(), f, nil)
			}
			last := records.published[len(records.published)-1]
			if tt.want == "" && (last != "open: another" || !p.open["acme"]) || tt.want != "" &&
				(last != tt.want || len(p.open) > 0) {
				t.Errorf("published %q, still to close %v, want %q", records.published, p.open, tt.want)
			}
		})
	}
}

// A folder that is followed is read again. A document that an operator has published in between stays until its file
// changes, and so does the policy of an account that has left the folder.
func TestFolderIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, interval: time.Minute}
		dir, write := folderOf(t, map[string]string{"duplication-accounts.json": `["acme", "bell"]`,
			"acme-duplication-policy.yaml": to("2"), "bell-duplication-policy.yaml": to("2")})
		p := s.run(dir)
		next := func() {
			time.Sleep(time.Minute)
			later()
		}
		write("acme-duplication-policy.yaml", to("3"))
		next()
		p.inForce("acme", "3")
		p.revision("bell", 1)

		must(t, p.Set(t.Context(), "acme", document(t, to("2")), "ann"))
		next()
		p.inForce("acme", "2")
		write("acme-duplication-policy.yaml", "# again\n"+to("3"))
		next()
		p.inForce("acme", "3")

		write("acme-duplication-policy.yaml", to("7"))
		next()
		p.refuses("acme-duplication-policy.yaml:2:21: defaultPolicies[0].destStoreId: unknown store")
		p.inForce("acme", "3")
		write("acme-duplication-policy.yaml", "# corrected\n"+to("2"))
		next()
		p.refuses()
		p.inForce("acme", "2")

		must(t, p.Set(t.Context(), "acme", document(t, to("3")), "ann"))
		write("bell-duplication-policy.yaml", "# of bell\n"+to("2")) // says nothing about acme
		next()
		p.inForce("acme", "3")
		p.revision("bell", 2)
		p.incident(incident.PolicyDiverged, false)

		write("duplication-accounts.json", `["acme"]`)
		next()
		next()
		p.inForce("bell", "2")
		p.logged("the policy folder has no document of the account any more", 1)
	})
}

// While a file is being written, what it has is no policy. While the folder cannot be read, the policies stay.
func TestFolderThatChangesWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, interval: time.Minute}
		dir, write := ofAcme(t, to("2"))
		p := s.run(dir)
		time.Sleep(time.Minute - steadyTime/2)
		for i := range 3 * steadyReads / 2 { // for longer than one look
			write(fmt.Sprintf("%s# %d\n", to("2", "3"), i))
			time.Sleep(steadyTime)
		}
		synctest.Wait()
		p.revision("acme", 1)
		p.logged("its document changes all the time", 1)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		p.inForce("acme", "2", "3")
		p.revision("acme", 2)

		away := dir + ".away"
		must(t, os.Rename(dir, away))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		p.inForce("acme", "2", "3")
		p.refuses()
		p.logged("the policy folder cannot be read", 2)
		must(t, os.Rename(away, dir))
		later()
		p.refuses()
		p.revision("acme", 2)
	})
}

// Of two processes that follow one folder, the one that has read an older file publishes nothing over the newer one.
func TestFollowersOfOneFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, interval: time.Minute}
		dir, write := ofAcme(t, to("2"))
		slow := s.process(dir)
		first := slow.read()
		must(t, slow.apply(t.Context(), first))
		write("# older\n" + to("2"))
		older := slow.read()
		write(to("2", "3"))
		s.run(dir).inForce("acme", "2", "3")
		late := s.late(dir, defaultAccounts()) // it knows the first revision only
		for _, r := range s.records[:1] {
			late.receive(r)
		}
		ended := make(chan error, 1)
		go func() { ended <- late.apply(t.Context(), older) }()
		synctest.Wait()
		late.follow() // and now that it has lost
		must(t, <-ended)
		late.inForce("acme", "2", "3")
		late.revision("acme", 2)
	})
}

// A file that is being written while a process loses a race is read until it is whole.
func TestPartOfAFileAfterALostRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		dir, write := ofAcme(t, to("2"))
		late := s.late(dir, defaultAccounts())
		must(t, s.process("").Set(t.Context(), "acme", policy.Document{}, "ann"))
		ended := make(chan error, 1)
		go func() { ended <- late.apply(t.Context(), late.read()) }()
		synctest.Wait()
		write(to("3")) // a part
		late.follow()
		time.Sleep(steadyTime / 2)
		synctest.Wait() // it has lost, and read the part
		write(to("3", "2"))
		must(t, <-ended)
		late.inForce("acme", "3", "2")
		late.revision("acme", 2)
	})
}

// The part of a file that is being written weakens the policy, so it waits for a minute. A change that a process
// followed is published, also one back to an earlier file.
func TestFilesThatChange(t *testing.T) {
	part := to("2")
	whole := part + "spaces:\n  photos:\n    deletes: keep\n"
	more := whole + "  mail:\n    deletes: keep\n"
	most := more + "  books:\n    deletes: keep\n"
	type write struct {
		after   time.Duration
		content string
	}
	const long = 5 * time.Minute
	now := func(content string) write { return write{0, content} }
	for name, tt := range map[string]struct {
		before   bool // the first write is before the process starts
		writes   []write
		want     string
		revision int64
	}{
		"a part at a start":              {true, []write{now(part), {time.Second / 2, whole}}, whole, 1},
		"a part at a start for a while":  {true, []write{now(part), {weakerTime / 2, whole}}, whole, 1},
		"a part at a start for long":     {true, []write{now(part), {3 * weakerTime, whole}}, whole, 3},
		"less at a start":                {true, []write{now(part)}, part, 2},
		"a part for a while":             {false, []write{now(part), {3 * weakerTime / 2, whole}}, whole, 1},
		"more, by parts, at a start":     {true, []write{now(more), {time.Second / 2, most}}, most, 2},
		"more, by parts":                 {false, []write{{time.Minute - time.Second/2, more}, {time.Second, most}}, most, 2},
		"less":                           {false, []write{now(part)}, part, 2},
		"less, and another file":         {false, []write{now(part), {weakerTime, more}}, more, 2},
		"set back":                       {false, []write{now(part), {long, whole}}, whole, 3},
		"set back twice":                 {false, []write{now(part), {long, whole}, {long, part}}, part, 4},
		"set back after a fault":         {false, []write{now(part), {long, "-"}, {long, whole}}, whole, 3},
		"a fault, and as it was":         {false, []write{now("-"), {long, whole}}, whole, 1},
		"another form":                   {false, []write{now("# whole\n" + whole), {long, whole}}, whole, 2},
		"a file that does not come back": {false, []write{now("# whole\n" + whole), {long, "-"}}, whole, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{t: t, interval: time.Minute}
				dir, file := ofAcme(t, whole)
				first := s.process(dir)
				must(t, first.apply(t.Context(), first.read()))
				if !tt.before {
					s.run(dir)
				}
				for i, w := range tt.writes {
					time.Sleep(w.after)
					synctest.Wait()
					if file(w.content); tt.before && i == 0 {
						go func() { s.run(dir) }()
					}
				}
				time.Sleep(long)
				synctest.Wait()
				got, _ := first.registry.Document("acme")
				if !got.Equal(document(t, tt.want)) {
					t.Errorf("in force: %+v", got)
				}
				first.revision("acme", tt.revision)
				first.incident(incident.PolicyDiverged, false)
			})
		})
	}
}

// A document that weakens the policy and waits is not published over one that a person publishes meanwhile, until its
// file changes.
func TestPersonIsLaterThanAWaitingFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, interval: 10 * time.Second}
		dir, write := ofAcme(t, to("2", "3"))
		p := s.run(dir)
		write(to("2"))
		time.Sleep(30 * time.Second)
		p.logged("delay policy", 1)
		must(t, p.Set(t.Context(), "acme", document(t, to("3")), "ann"))
		later()
		p.inForce("acme", "3")
		p.incident(incident.PolicyDiverged, true)
		write("# again\n" + to("2"))
		later()
		p.inForce("acme", "2")
		p.incident(incident.PolicyDiverged, false)
	})
}

// Documents that are pending are read again also if the folder is followed more often than they.
func TestPendingDocumentOfAFollowedFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, interval: time.Second}
		dir, _ := ofAcme(t, to("2"))
		p := s.run(dir)
		must(t, p.Set(t.Context(), "acme", document(t, to("3")), "ann"))
		other := s.run(dir) // finds that it has diverged
		later()
		other.incident(incident.PolicyDiverged, true)
		must(t, p.Set(t.Context(), "acme", document(t, to("2")), "ann"))
		later()
		other.incident(incident.PolicyDiverged, false)
	})
}
