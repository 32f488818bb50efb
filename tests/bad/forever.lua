-- Ends at the limit of steps.
while true do end -- error: the script runs too long
