"""Validation croisée : ses plis ont un titre avec leurs tailles, les meilleurs une étoile."""
import math

EPOQUES, seen, best = 4, 0, 9.0
print(f"🤖 modèle | batch={64} | 1,204 paramètres")
for pli in (1, 2):
    print(f"--- pli {pli}/2 (entraînement: {180}, validation: {60}) ---")
    for ep in range(1, EPOQUES + 1):
        seen += 1
        rmse = 2 * math.exp(-seen / 5) + 0.1 * (seen % 3)
        etoile = " *" if rmse < best else ""
        best = min(best, rmse)
        print(f"  époque {ep:02d} | rmse_entr {rmse - 0.01:.4f} | rmse_val {rmse:.4f} | R² {1 - rmse / 3:+.3f}{etoile}")
        print(f"  🧮 score ➜ {math.cos(seen):.3f}")
    print("  écart du pli {}: {:.2f} ± {:.2f}".format(pli, rmse / 2, rmse / 4))
