package duplicate

// A Row is a row of the decision tables in docs/decisions-duplication.md. Its value is the field decision of a
// DuplicationResult, and so the column decision of the table duplication_log.
type Row string

// The rows about items, in the order in which Decide tries them. RowUnknown and RowNoDigest apply at any point at which
// a record or a digest is needed.
const (
	// RowSuperseded: a later command for the same item and destination does the same work. Handle decides it, not Decide.
	RowSuperseded Row = "superseded"
	// RowRepairDelete: an operator has a copy deleted that is present under its tombstone. The deleter decides it.
	RowRepairDelete Row = "C0d"
	// RowAsked: a person asked to have a copy removed that the rules do not want. The deleter decides it.
	RowAsked Row = "C0a"

	RowRepair                   Row = "C0"
	RowRepairProperties         Row = "C0p"
	RowRestore                  Row = "C0r"
	RowNotInPolicy              Row = "C12"
	RowUnknown                  Row = "C9"
	RowExcluded                 Row = "C10"
	RowNoDigest                 Row = "C1"
	RowSourceSuspect            Row = "C4s"
	RowSourceResurrected        Row = "C4r"
	RowSourceNewer              Row = "C4w"
	RowDestinationNotAsRecorded Row = "C4d"
	RowPropertiesDiffer         Row = "C3"
	RowPropertiesUnknown        Row = "C2u"
	RowInSync                   Row = "C2"
	RowSourceOlder              Row = "C4o"
	RowContentDiffers           Row = "C4"
	RowSourceUnrecorded         Row = "C4n"
	RowDestinationAbsent        Row = "C5"
	RowSourceMissing            Row = "C6"
	RowOrphan                   Row = "C7c" // of the middle of a chain: after RowSourceNewer
	RowDestinationNewer         Row = "C7d"
	RowDeleteHeld               Row = "C7b"
	RowSourceDeleted            Row = "C7"
	RowAllCopiesMissing         Row = "C8x"
	RowBothAbsent               Row = "C8"
)

// The rows about spaces, in the order in which decideSpace tries them. RowNotInPolicy comes after RowSpaceNoID.
const (
	RowSpaceNoID              Row = "S0"
	RowSpaceUnknown           Row = "S5"
	RowSpaceDestinationAbsent Row = "S1"
	RowSpacePresent           Row = "S1b"
	RowSpaceBothAbsent        Row = "S4"
	RowSpaceEmpty             Row = "S2"
	RowSpaceNotEmpty          Row = "S3"
)
