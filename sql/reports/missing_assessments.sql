-- Question: How many executions have no score, by evaluator?
-- One row an evaluator (null: the execution ended and nobody assessed it): the ended current executions whose
-- assessment that counts is its. A missing assessment is no zero. `share` is of those without a score.
-- Then: open the example; a share that is not near 0 is an evaluator to mend, not a policy that fails.
-- Empty: no execution has ended.
-- Key: evaluator
with ended as (
    select e.execution_id, a.evaluator, a.assessment, s.detail
    from executions as e
    left join assessments as a on a.execution_id = e.execution_id
    left join scores as s
        on s.execution_id = a.execution_id and s.evaluator = a.evaluator and s.version = a.version
    where e.is_current and e.status is not null
    qualify row_number() over (partition by e.execution_id order by s.log_offset desc) = 1
),

final as (
    select
        evaluator,
        count(*) as executions,
        count(*) filter (assessment = 'scored') as scored,
        count(*) filter (assessment = 'partial') as partial,
        count(*) filter (assessment = 'missing') as missing,
        count(*) filter (assessment is null) as not_assessed,
        count(*) filter (coalesce(assessment, 'missing') = 'missing') / count(*) as share,
        min(execution_id) filter (coalesce(assessment, 'missing') = 'missing') as example,
        arg_min(detail, execution_id) filter (assessment = 'missing') as example_detail
    from ended
    group by evaluator
)

select * from final
