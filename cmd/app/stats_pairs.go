package app

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
)

// A pairSize is the size of a space on record at the source and at the destination of a pair.
type pairSize struct {
	pairs.Pair
	source, destination read.SpaceStatus
}

// compareSizes returns the sizes of the spaces of the pairs of a policy. all are the spaces of an account on record; of
// a space that a store does not have there is nothing.
func compareSizes(account string, all []read.SpaceStatus, pairsOf func(space string) []policy.Pair) (sizes []pairSize) {
	var spaces []string
	bySpace := map[string]map[string]read.SpaceStatus{} // by space and store
	for _, s := range all {
		if bySpace[s.Space] == nil {
			spaces, bySpace[s.Space] = append(spaces, s.Space), map[string]read.SpaceStatus{}
		}
		bySpace[s.Space][s.Store] = s
	}
	slices.Sort(spaces)
	for _, space := range spaces {
		for _, p := range pairsOf(space) {
			sizes = append(sizes, pairSize{
				pairs.Pair{Account: account, Space: space, Source: p.Source, Destination: p.Destination},
				bySpace[space][p.Source], bySpace[space][p.Destination],
			})
		}
	}
	return sizes
}

// difference describes what the destination has less or more than the source; empty: nothing. Bytes are compared only
// if the size of each item is known.
func (p pairSize) difference() string {
	var words []string
	differ := func(source, destination int64, what string) {
		switch n := destination - source; {
		case n < 0:
			words = append(words, fmt.Sprintf("%d %s fewer", -n, what))
		case n > 0:
			words = append(words, fmt.Sprintf("%d %s more", n, what))
		}
	}
	differ(int64(p.source.Live), int64(p.destination.Live), "items")
	if p.source.Unsized == 0 && p.destination.Unsized == 0 {
		differ(p.source.Bytes, p.destination.Bytes, "bytes")
	}
	if len(words) == 0 {
		return ""
	}
	return "the destination has " + strings.Join(words, " and ")
}

// report returns the report of a round. It is complete if the bytes were compared.
func (p pairSize) report(r sweep.Round) schemas.Message {
	return schemas.Message{Topic: schemas.Reports, Body: &pb.Report{
		Id: schemas.ID("report", SizesKind, r.ID, p.Source, p.Destination, p.Space), Kind: SizesKind, Account: p.Account,
		Store: p.Source, DestinationStore: p.Destination, Space: p.Space, Round: r.ID,
		Started: timestamppb.New(r.Started), Finished: timestamppb.New(r.Started), Detail: p.difference(),
		Complete: p.source.Unsized == 0 && p.destination.Unsized == 0,
		Counts: map[string]int64{
			"source_items": int64(p.source.Live), "source_bytes": p.source.Bytes, "source_unsized": int64(p.source.Unsized),
			"destination_items": int64(p.destination.Live), "destination_bytes": p.destination.Bytes,
			"destination_unsized": int64(p.destination.Unsized),
		},
	}}
}
