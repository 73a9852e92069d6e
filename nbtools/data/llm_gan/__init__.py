"""Stories and Markov-chain texts of the LLM GAN."""
