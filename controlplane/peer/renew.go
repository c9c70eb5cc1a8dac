package peer

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// maxRenew limits the body of a renewal request, in bytes.
const maxRenew = 64 << 10

// RenewHandler serves hostapi.PathRenew. It issues a new certificate to the holder of the
// certificate that the client presents; Handler has checked that the holder is a member. It logs
// whose certificate was of another authority than the one that signs: while the CA is exchanged
// because its key was stolen, one of them may be the thief's.
func RenewHandler(ca *pki.CA, clock func() time.Time, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fail := func(status int, detail string) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": http.StatusText(status), "detail": detail}) // the caller may be gone
		}
		if r.Method != http.MethodPost {
			fail(http.StatusMethodNotAllowed, "POST only")
			return
		}
		var in hostapi.Renew
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRenew)).Decode(&in); err != nil {
			fail(http.StatusBadRequest, "not valid JSON")
			return
		}
		leaf := r.TLS.PeerCertificates[0]
		cert, issuer, err := ca.RenewMember([]byte(in.CSR), leaf, clock())
		log := log.With("identity", leaf.Subject.CommonName, "issuer", issuer, "signed_at", pki.SignedAt(leaf), "remote", r.RemoteAddr)
		switch {
		case errors.Is(err, pki.ErrOthers):
			log.WarnContext(r.Context(), "a certificate of another CA is not renewed", "remedy", "if it belongs to a member, give that one another by hand: controlplane init --ca")
			fail(http.StatusForbidden, err.Error()+": an operator makes the next one (controlplane init --ca)")
		case errors.Is(err, pki.ErrCSR):
			fail(http.StatusBadRequest, err.Error())
		case err != nil:
			fail(http.StatusInternalServerError, "the certificate was not issued")
		default:
			if issuer != "" {
				log.InfoContext(r.Context(), "a certificate of another CA is renewed")
			}
			_ = json.NewEncoder(w).Encode(hostapi.Renewed{Certificate: string(cert)}) // a caller that is gone will ask again
		}
	})
}
