package reconcile

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A file to which a program appends for a minute, in steps shorter than the distance of two looks, is taken in when it
// is complete, never before, also if a round is always under way. The files are on a disk, and the clock is not.
func TestFileThatIsAppendedTo(t *testing.T) {
	root, now := filepath.Join(t.TempDir(), "1"), time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // the files have the real time
		w := &world{t: t, rows: map[string]Row{}}
		disk, err := file.Open(file.Config{ID: "acme/1", Root: root, Create: true})
		w.must(err)
		defer disk.Close()
		w.must(disk.WriteMarker(t.Context()))
		w.must(disk.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
		w.store = storagetest.NewFaulty(disk)
		w.config = Config{Space: photos, Settle: 500 * time.Millisecond, MaxMissing: 0.1}

		const steps = 300
		var writer sync.WaitGroup
		out, err := os.Create(filepath.Join(root, "photos", "growing"))
		w.must(err)
		begun := time.Now()
		writer.Go(func() {
			for range steps {
				if _, err := out.WriteString("0123456789"); err != nil {
					t.Error(err)
				}
				time.Sleep(200 * time.Millisecond)
			}
			if err := out.Close(); err != nil {
				t.Error(err)
			}
		})
		unsettled := 0
		for time.Since(begun) < steps*200*time.Millisecond-time.Second {
			messages, counts, err := w.round()
			w.must(err)
			if unsettled++; len(messages) > 0 || counts["unsettled"] != 1 {
				t.Fatalf("after %v: %d messages, %v", time.Since(begun), len(messages), counts)
			}
		}
		writer.Wait()
		messages, _, err := w.round()
		w.must(err)
		if len(messages) != 1 {
			t.Fatalf("%d messages at the end", len(messages))
		}
		if c, _ := messages[0].Body.(*pb.Change); c.GetSize() != 10*steps || c.GetItem() != "growing" || unsettled < 100 {
			t.Errorf("after %d rounds it is taken in as %v", unsettled, c)
		}
	})
}
