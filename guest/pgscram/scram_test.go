package pgscram

import (
	"encoding/base64"
	"testing"
)

// The example of RFC 7677, as PostgreSQL would keep it.
func TestAVerifierIsThatOfTheRFC(t *testing.T) {
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	if err != nil {
		t.Fatal(err)
	}
	const want = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
	if got, err := verifierOf("pencil", salt); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	a, _ := Verifier("pencil")
	if b, _ := Verifier("pencil"); a == b {
		t.Error("two verifiers have one salt")
	}
}
